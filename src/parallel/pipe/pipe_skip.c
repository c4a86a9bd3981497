/* Skip connections between stages: tensors go straight from the stage that stashes to the stage
 * that pops, past those between, and gradients go straight back.
 *
 *     stage 0 ──▶ stage 1 ──▶ stage 2       the main line
 *        └───── forward m ───────┘          a pair of channels for each skip
 *        ┌───── gradient m ──────┐
 *
 * The validator need not know of these edges, since the main line implies them: forwards and
 * backwards of a micro-batch go through the stages one after the other, so 2F0 comes after 0F0 and
 * 0B0 after 2B0 (or 2I0) in every valid table. A stage waits for a skip when it waits for its
 * neighbour anyway, and no table can deadlock because of it.
 *
 * A skip between modules of one stage stays on the pass (nn/skip.c). */
#include "parallel/pipe/pipe_skip.h"

#include "core/error.h"
#include "parallel/pipe/pipe.h"

#include "core/memory.h"
#include "tensor/tensor.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- What the model declares ------------------------------------------------------------ */

/* Names the end's module and, if `other` is given, the other end's. */
static sl_status refuse(const sli_skip_end *end, const char *why, const sli_skip_end *other)
{
    char path[SLI_PATH_BYTES], other_path[SLI_PATH_BYTES];
    const char *verbs[] = {"stashes", "pops"};
    sli_module_path(end->module, path);
    if (!other)
        return sl_error(SL_ERR_INVALID, "sl_pipe_create: %s (%s) %s \"%s\", which no module %s",
                        path, sl_module_type(end->module), verbs[end->pops], end->name,
                        verbs[!end->pops]);
    return sl_error(SL_ERR_INVALID, "sl_pipe_create: %s (%s) %s \"%s\", %s %s (%s)", path,
                    sl_module_type(end->module), verbs[end->pops], end->name, why,
                    sli_module_path(other->module, other_path), sl_module_type(other->module));
}

static sli_skip *find_skip(const sl_pipe *pipe, const char *name)
{
    for (int i = 0; i < pipe->skip_count; i++)
        if (strcmp(pipe->skips[i].stash->name, name) == 0)
            return &pipe->skips[i];
    return NULL;
}

static sl_status add_stash(const sli_skip_end *end, void *arg)
{
    sl_pipe *pipe = arg;
    if (end->pops)
        return SL_OK;
    const sli_skip *other = find_skip(pipe, end->name);
    if (other)
        return refuse(end, "and so does", other->stash);
    SL_TRY(sli_array_reserve(&pipe->skips, &pipe->skip_capacity, (size_t)pipe->skip_count + 1,
                             sizeof *pipe->skips, INT_MAX, "skip connections"));
    pipe->skips[pipe->skip_count++] = (sli_skip){.stash = end};
    return SL_OK;
}

static sl_status add_pop(const sli_skip_end *end, void *arg)
{
    const sl_pipe *pipe = arg;
    if (!end->pops)
        return SL_OK;
    sli_skip *skip = find_skip(pipe, end->name);
    if (!skip)
        return refuse(end, NULL, NULL);
    if (skip->pop)
        return refuse(end, "and so does", skip->pop);
    if (sli_module_index_in(pipe->model, end->module) <
        sli_module_index_in(pipe->model, skip->stash->module))
        return refuse(end, "which is stashed later, by", skip->stash);
    skip->pop = end;
    return SL_OK;
}

/* ---- Connecting stages ------------------------------------------------------------------ */

/* Leaves those whose ends are in two stages. */
static void leave_crossing(sl_pipe *pipe)
{
    int crossing = 0;
    for (int i = 0; i < pipe->skip_count; i++) {
        sli_skip skip = pipe->skips[i];
        skip.stash_stage = sli_pipe_find_stage(pipe, skip.stash->module)->index;
        skip.pop_stage = sli_pipe_find_stage(pipe, skip.pop->module)->index;
        if (skip.stash_stage != skip.pop_stage)
            pipe->skips[crossing++] = skip;
    }
    pipe->skip_count = crossing;
}

static sl_status give_records_room(sl_pipe *pipe, sli_stage *stage)
{
    size_t count = (size_t)pipe->skip_count, micros = (size_t)pipe->table_micros;
    stage->skips = pipe->skips;
    stage->skip_count = pipe->skip_count;
    stage->skip_room = calloc(count * micros + 1, sizeof(sl_tensor *));
    if (!stage->skip_room)
        return sli_no_memory("sl_pipe_create", "%d skip connections", pipe->skip_count);
    for (size_t micro = 0; micro < micros; micro++)
        stage->records[micro].skips = stage->skip_room + micro * count;
    return SL_OK;
}

sl_status sli_pipe_find_skips(sl_pipe *pipe)
{
    SL_TRY(sli_module_for_each_skip_end(pipe->model, add_stash, pipe));
    SL_TRY(sli_module_for_each_skip_end(pipe->model, add_pop, pipe));
    for (int i = 0; i < pipe->skip_count; i++)
        if (!pipe->skips[i].pop)
            return refuse(pipe->skips[i].stash, NULL, NULL);
    leave_crossing(pipe);
    for (int i = 0; i < pipe->stage_count; i++)
        SL_TRY(give_records_room(pipe, &pipe->stages[i]));
    return SL_OK;
}

/* ---- Between channels and records ------------------------------------------------------- */

/* What the action sends to, or receives from; NULL: nothing. */
static sli_channel *channel_of(const sli_stage *stage, const sli_skip *skip, sl_action action,
                               bool sends)
{
    bool stashes = stage->index == skip->stash_stage, pops = stage->index == skip->pop_stage;
    switch (action.kind) {
    case SL_ACTION_FORWARD:
        return (sends ? stashes : pops) ? skip->forward : NULL;
    case SL_ACTION_BACKWARD:
    case SL_ACTION_BACKWARD_INPUT:
        return (sends ? pops : stashes) ? skip->gradient : NULL;
    case SL_ACTION_RECOMPUTE:
    case SL_ACTION_BACKWARD_WEIGHT:
    case SL_ACTION_HEAD_FORWARD:
    case SL_ACTION_HEAD_BACKWARD:
        break;
    }
    return NULL;
}

bool sli_stage_receive_skips(const sli_stage *stage, sl_action action, int number)
{
    sl_tensor **slots = stage->records[action.micro].skips;
    for (int i = 0; i < stage->skip_count; i++) {
        sli_channel *source = channel_of(stage, &stage->skips[i], action, false);
        if (source && !sli_channel_receive(source, action.micro, number, &slots[i]))
            return false;
    }
    return true;
}

sl_status sli_stage_copy_skips(const sli_stage *stage, sl_action action)
{
    sl_tensor **slots = stage->records[action.micro].skips;
    for (int i = 0; i < stage->skip_count; i++)
        if (channel_of(stage, &stage->skips[i], action, false))
            SL_TRY(sli_tensor_receive(&slots[i], stage->device));
    return SL_OK;
}

void sli_stage_send_skips(const sli_stage *stage, sl_action action)
{
    sl_tensor **slots = stage->records[action.micro].skips;
    for (int i = 0; i < stage->skip_count; i++) {
        sli_channel *target = channel_of(stage, &stage->skips[i], action, true);
        if (target)
            sli_channel_send(target, action.micro, &slots[i]);
    }
}

/* ---- Between records and passes --------------------------------------------------------- */

sl_status sli_stage_give_skips(const sli_stage *stage, int micro, sl_pass *pass, bool again)
{
    for (int i = 0; i < stage->skip_count; i++) {
        const sli_skip *skip = &stage->skips[i];
        sl_tensor **slot = &stage->records[micro].skips[i], *alias = NULL;
        if (skip->pop_stage != stage->index)
            continue;
        if (again)
            SL_TRY(sl_tensor_alias(*slot, &alias));
        SL_TRY(sli_pass_put_skip(pass, skip->pop->name, again ? &alias : slot));
    }
    return SL_OK;
}

static sl_status missing(const char *kind, const sli_skip_end *end)
{
    char path[SLI_PATH_BYTES];
    return sl_error(SL_ERR_INVALID, "%s (%s) stashed no %s\"%s\"",
                    sli_module_path(end->module, path), sl_module_type(end->module), kind,
                    end->name);
}

sl_status sli_stage_take_skips(const sli_stage *stage, int micro, sl_pass *pass)
{
    for (int i = 0; i < stage->skip_count; i++) {
        const sli_skip_end *stash = stage->skips[i].stash;
        if (stage->skips[i].stash_stage != stage->index)
            continue;
        sli_pass_skip *stashed = sli_pass_find_skip(pass, stash->name);
        if (!stashed || !stashed->tensor)
            return missing("", stash);
        stage->records[micro].skips[i] = stashed->tensor;
        stashed->tensor = NULL;
    }
    return sli_pass_check_skips(pass);
}

void sli_stage_drop_skips(const sli_stage *stage, int micro)
{
    for (int i = 0; i < stage->skip_count; i++)
        sl_tensor_destroy(&stage->records[micro].skips[i]);
}

void sli_stage_give_skip_grads(const sli_stage *stage, int micro)
{
    sli_record *record = &stage->records[micro];
    for (int i = 0; i < stage->skip_count; i++)
        if (stage->skips[i].stash_stage == stage->index) {
            sli_pass_find_skip(record->pass, stage->skips[i].stash->name)->grad = record->skips[i];
            record->skips[i] = NULL;
        }
}

sl_status sli_stage_take_skip_grads(const sli_stage *stage, int micro)
{
    const sli_record *record = &stage->records[micro];
    for (int i = 0; i < stage->skip_count; i++) {
        const sli_skip_end *pop = stage->skips[i].pop;
        if (stage->skips[i].pop_stage != stage->index)
            continue;
        sli_pass_skip *popped = sli_pass_find_skip(record->pass, pop->name);
        if (!popped || !popped->grad)
            return missing("gradient of ", pop);
        record->skips[i] = popped->grad;
        popped->grad = NULL;
    }
    return sli_pass_check_skips(record->pass);
}

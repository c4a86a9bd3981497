#include "train/checkpoint/resume.h"

#include "core/error.h"
#include "core/file.h"
#include "io/checkpoint/reader.h"
#include "optim/optimizer.h"
#include "train/checkpoint/save_directory.h"
#include "train/checkpoint/tensors.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Which one -------------------------------------------------------------------------- */

static sl_status is_checkpoint(const char *path, bool *out)
{
    char *state;
    struct stat found;
    SL_TRY(sli_path_join(path, "state.json", &state));
    *out = stat(state, &found) == 0;
    sl_status status = SL_OK;
    if (!*out && errno != ENOENT && errno != ENOTDIR)
        status = sli_io_error(state, "looking for it failed");
    free(state);
    return status;
}

/* Opens it, and reads all of it once: what is damaged is found while there is another choice. */
static sl_status open_whole(const char *path, sl_checkpoint_reader **out)
{
    SL_TRY(sl_checkpoint_open(path, out));
    sl_status status = sl_checkpoint_verify(*out);
    if (status != SL_OK)
        sl_checkpoint_close(out);
    return status;
}

/* One that is damaged, or has lost files, is skipped; whatever else keeps it from being read may
 * pass, and an older one in its place would lose steps. */
static sl_status try_one(const sli_reports *reports, const char *path, sl_checkpoint_reader **out)
{
    sli_error_copy why;
    sl_status status = sli_error_save(&why, open_whole(path, out));
    if (status != SL_ERR_FORMAT && status != SL_ERR_NOT_FOUND)
        return status;
    return sli_report_checkpoint(reports, &(sl_checkpoint_event){.kind = SL_CHECKPOINT_SKIPPED,
                                                                 .path = path,
                                                                 .reason = why.text});
}

static sl_status open_newest_of(const char *directory, const int64_t *steps, size_t count,
                                const sli_reports *reports, sli_resume *out)
{
    for (size_t i = 0; i < count && !out->reader; i++) {
        free(out->path);
        SL_TRY(sli_save_directory_step(directory, steps[i], &out->path));
        SL_TRY(try_one(reports, out->path, &out->reader));
    }
    if (out->reader || count == 0)
        return SL_OK;
    return sl_error(SL_ERR_NOT_FOUND,
                    "%s: has %zu checkpoint%s, but none is whole: restore one, or train into "
                    "another directory to begin anew",
                    directory, count, count == 1 ? "" : "s");
}

/* Where there are checkpoints but none is whole, no run begins anew, since it would replace them.
 * Without any, `resume_if_any` begins anew, also where `progress` records steps: a run may end
 * before its first save. */
static sl_status find_newest(const sl_save_options *options, const sli_reports *reports,
                             sli_resume *out)
{
    int64_t *steps;
    size_t count;
    out->last_step = sli_last_step_read(options->resume);
    SL_TRY(sli_save_directory_list(options->resume, false, &steps, &count));
    sl_status status = open_newest_of(options->resume, steps, count, reports, out);
    free(steps);
    if (status == SL_OK && !out->reader && !options->resume_if_any)
        status = sl_error(SL_ERR_NOT_FOUND, "%s: there is no checkpoint to resume from",
                          options->resume);
    return status;
}

sl_status sli_resume_open(const sl_save_options *options, const sli_reports *reports,
                          sli_resume *out)
{
    bool single = false;
    *out = (sli_resume){0};
    if (!options->resume)
        return SL_OK;
    if (!options->resume_if_any) /* then it is a directory of them, or will be */
        SL_TRY(is_checkpoint(options->resume, &single));
    if (!single)
        return find_newest(options, reports, out);
    out->path = strdup(options->resume);
    if (!out->path)
        return sl_error(SL_ERR_MEMORY, "no memory for a path");
    return open_whole(out->path, &out->reader);
}

void sli_resume_clear(sli_resume *from)
{
    sl_checkpoint_close(&from->reader);
    free(from->path);
    *from = (sli_resume){0};
}

sl_status sli_resume_recorded(const sli_resume *from, sli_recorded *out)
{
    return sl_error_context(sli_run_state_read(sl_checkpoint_state(from->reader), out),
                            "%s: ", from->path);
}

static const char OTHER_ORDER[] =
    "it was made when gradients of micro-batches were added from the last to the first; from here "
    "on "
    "they are added from the first to the last, and losses differ in their last digits";

sl_status sli_resume_check(const sli_resume *from, const sli_shared *shared,
                           const sli_reports *reports)
{
    sli_recorded run;
    if (!from->reader)
        return SL_OK;
    SL_TRY(sl_error_context(sli_run_state_check(sl_checkpoint_state(from->reader), shared),
                            "%s: ", from->path));
    SL_TRY(sli_resume_recorded(from, &run));
    int64_t step = run.position.steps;
    bool reverses = !run.ascends && shared->options.chunks > 1;
    return sli_report_checkpoint(reports,
                                 &(sl_checkpoint_event){.kind = SL_CHECKPOINT_RESUMED,
                                                        .path = from->path,
                                                        .step = step,
                                                        .reason = reverses ? OTHER_ORDER : NULL,
                                                        .lost_steps = from->last_step > step
                                                                          ? from->last_step - step
                                                                          : 0});
}

/* ---- Tensors ---------------------------------------------------------------------------- */

/* sl_checkpoint_read or sli_checkpoint_check_items. */
typedef sl_status (*use_items)(const sl_checkpoint_reader *from, const char *part,
                               const sl_safetensors_item *items, size_t count);

static sl_status for_items(use_items use, const sl_checkpoint_reader *from, const char *part,
                           const sli_tensors *tensors)
{
    sl_safetensors_item *items;
    SL_TRY(sli_tensors_items(tensors, &items));
    sl_status status = use(from, part, items, tensors->count);
    free(items);
    return status;
}

sl_status sli_resume_model(const sl_checkpoint_reader *from, const sl_pipe *pipe)
{
    sli_tensors tensors;
    sl_status status = sli_tensors_of_model(pipe, &tensors);
    if (status == SL_OK)
        status = for_items(sl_checkpoint_read, from, "model", &tensors);
    sli_tensors_clear(&tensors);
    return status;
}

/* What the first replica reads at once, and the others get. */
enum { CHUNK = 1 << 22 };

/* Gives every replica what it has of a tensor. */
static sl_status spread_tensor(const sl_checkpoint_reader *from, const char *part,
                               const sli_replica *replicas, const sli_tensor_entry *to,
                               float *chunk)
{
    int64_t elements = sl_shape_count(&to->shape), end = to->first + to->count;
    for (int64_t at = 0, count; at < elements; at += count) {
        count = elements - at < CHUNK ? elements - at : CHUNK;
        if (from)
            SL_TRY(sli_checkpoint_read_elements(from, part, to->name, at, count, chunk));
        SL_TRY(sl_group_broadcast(replicas->group, chunk, count, SL_F32, 0, NULL));
        int64_t low = to->first > at ? to->first : at, high = end < at + count ? end : at + count;
        if (low < high) /* a CPU's memory is the host's */
            memcpy(sl_tensor_f32(to->tensor) + (low - to->first), chunk + (low - at),
                   (size_t)(high - low) * sizeof *chunk);
    }
    return SL_OK;
}

/* Gives every replica what it has of the part's tensors; `from` is the first one's, and was read
 * whole before. Nobody holds more of them than this and a chunk. */
static sl_status spread_tensors(const sl_checkpoint_reader *from, const char *part,
                                const sli_replica *replicas, const sli_tensors *to)
{
    if (!replicas->group)
        return for_items(sl_checkpoint_read, from, part, to);
    if (from)
        SL_TRY(for_items(sli_checkpoint_check_items, from, part, to));
    float *chunk = malloc(CHUNK * sizeof *chunk);
    sl_status status = chunk ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory for reading tensors");
    for (size_t i = 0; i < to->count && status == SL_OK; i++)
        status = spread_tensor(from, part, replicas, &to->entries[i], chunk);
    free(chunk);
    return status;
}

static sl_status resume_optimizers(const sl_checkpoint_reader *from, const sli_replica *replicas,
                                   sli_update *update, int64_t steps)
{
    sli_tensors tensors;
    sl_optimizer *own[SL_MAX_STAGES];
    bool sharded = sli_update_is_sharded(update);
    for (int s = 0; s < sl_pipe_stages(replicas->pipe); s++) {
        own[s] = sli_update_own(update, s);
        sli_optimizer_set_steps(own[s], steps);
    }
    sl_status status = sli_tensors_of_optimizer(replicas->pipe, own, sharded ? replicas->rank : 0,
                                                sharded ? replicas->count : 1, &tensors);
    if (status == SL_OK)
        status = spread_tensors(from, "optimizer", replicas, &tensors);
    sli_tensors_clear(&tensors);
    return status;
}

/* The best parameters are the model's where the checkpoint was made right after their validation. A
 * copy that the replicas of this process share is the first one's to read. */
static sl_status resume_best(const sl_checkpoint_reader *from, const sli_replica *replicas,
                             sli_best *best, const sli_position *position)
{
    sli_tensors tensors = {0};
    bool shared = sli_best_is_shared(best);
    sl_status status = SL_OK;
    if (!isfinite(position->best_loss))
        return SL_OK;
    SL_TRY(sli_best_keep(best, replicas->pipe));
    if (position->best_step == position->steps)
        return SL_OK;
    if (from || !shared)
        status = sli_tensors_of_best(replicas->pipe, best, &tensors);
    if (status == SL_OK && !shared)
        status = spread_tensors(from, "best", replicas, &tensors);
    else if (status == SL_OK && from)
        status = for_items(sl_checkpoint_read, from, "best", &tensors);
    sli_tensors_clear(&tensors);
    return status == SL_OK && shared ? sl_group_barrier(replicas->group, NULL) : status;
}

/* ---- All of it -------------------------------------------------------------------------- */

/* Gives every replica what the first one has read; *found: there is a checkpoint. */
static sl_status spread_position(const sl_checkpoint_reader *from, const sli_replica *replicas,
                                 sli_position *position, bool *found)
{
    struct {
        int64_t found;
        sli_position position;
    } told = {from != NULL, *position};
    _Static_assert(sizeof told % sizeof(int64_t) == 0, "what is told is words");
    if (from) {
        sli_recorded run;
        SL_TRY(sli_run_state_read(sl_checkpoint_state(from), &run));
        told.position = run.position;
    }
    if (replicas->group)
        SL_TRY(sl_group_broadcast(replicas->group, &told, sizeof told / sizeof(int64_t), SL_I64, 0,
                                  NULL));
    *found = told.found != 0;
    *position = told.position;
    return SL_OK;
}

sl_status sli_resume_rest(const sl_checkpoint_reader *from, const sli_replica *replicas,
                          sli_update *update, sli_best *best, sli_position *position)
{
    bool found;
    SL_TRY(spread_position(from, replicas, position, &found));
    if (!found)
        return SL_OK;
    SL_TRY(resume_optimizers(from, replicas, update, position->steps));
    return resume_best(from, replicas, best, position);
}

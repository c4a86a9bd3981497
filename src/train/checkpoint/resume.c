/* The way back: a run goes on from a checkpoint. The first replica reads it, and gives the others
 * what they hold of each tensor. */
#include "train/checkpoint/checkpoints.h"

#include "core/error.h"
#include "core/file.h"
#include "core/replace.h"
#include "optim/optimizer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Which one -------------------------------------------------------------------------- */

sl_status sli_resume_is_checkpoint(const char *path, bool *out)
{
    char *state, *directory;
    struct stat found;
    SL_TRY(sli_replace_directory_find(path, &directory));
    sl_status joined = sli_path_join(directory, "state.json", &state);
    free(directory);
    SL_TRY(joined);
    *out = stat(state, &found) == 0;
    sl_status status = SL_OK;
    if (!*out && errno != ENOENT && errno != ENOTDIR)
        status = sli_io_error(state, "looking for it failed");
    free(state);
    return status;
}

/* What is looked for. */
typedef struct checkpoint_search {
    const char *path;  /* a checkpoint, or a directory of them */
    bool is_directory; /* it is one, or will be */
    bool is_whole;     /* all of it is read once: what is damaged is found while there is another */
    const char *job;   /* (optional) only those that it has saved */
    const sli_run *run; /* (optional) reports those that are skipped */
} checkpoint_search;

static sl_status open_one(const char *path, bool is_whole, sl_checkpoint_reader **out)
{
    SL_TRY(sl_checkpoint_open(path, out));
    sl_status status = !sl_checkpoint_state(*out)
                           ? sl_error(SL_ERR_NOT_FOUND, "%s: it has no state.json", path)
                       : is_whole ? sl_checkpoint_verify(*out)
                                  : SL_OK;
    if (status != SL_OK)
        sl_checkpoint_close(out);
    return status;
}

/* One that is damaged, or has lost files, is skipped; whatever else keeps one from being read may
 * pass, and an older one in its place would lose steps. Where there are checkpoints but none is
 * whole, no run begins anew, since it would replace them. */
static sl_status open_newest_of(const checkpoint_search *search, const int64_t *steps, size_t count,
                                char **path, sl_checkpoint_reader **out)
{
    size_t others = 0;
    for (size_t i = 0; i < count; i++) {
        sli_error_copy why;
        free(*path);
        SL_TRY(sli_save_directory_step(search->path, steps[i], path));
        if (search->job && !sli_save_directory_is_of_job(*path, search->job)) {
            others++;
            continue;
        }
        sl_status status = sli_error_save(&why, open_one(*path, search->is_whole, out));
        if (status != SL_ERR_FORMAT && status != SL_ERR_NOT_FOUND)
            return status;
        if (search->run)
            SL_TRY(sli_report_checkpoint(search->run,
                                         &(sl_checkpoint_event){.kind = SL_CHECKPOINT_SKIPPED,
                                                                .path = *path,
                                                                .reason = why.text}));
    }
    if (count == others)
        return SL_OK;
    return sl_error(SL_ERR_NOT_FOUND,
                    "%s: has %zu checkpoint%s, but none is whole: restore one, or train into "
                    "another directory to begin anew",
                    search->path, count, count == 1 ? "" : "s");
}

/* That checkpoint, or the newest one of a directory; NULL: it has none, also where `progress`
 * records steps, since a run may end before its first save. */
static sl_status open_checkpoint(const checkpoint_search *search, bool *single, char **path,
                                 sl_checkpoint_reader **out)
{
    int64_t *steps;
    size_t count;
    *single = false;
    if (!search->is_directory)
        SL_TRY(sli_resume_is_checkpoint(search->path, single));
    if (*single) {
        *path = strdup(search->path);
        return *path ? open_one(*path, search->is_whole, out)
                     : sli_no_memory(search->path, "resuming from it");
    }
    SL_TRY(sli_save_directory_list(search->path, false, &steps, &count));
    sl_status status = open_newest_of(search, steps, count, path, out);
    free(steps);
    return status;
}

static sl_status decide_start(sli_run *run, const sl_save_options *options)
{
    const sl_train_launch *launch = &run->launch;
    bool is_auto = options->resume && strcmp(options->resume, "auto") == 0, has_saved = false;
    if (is_auto && !options->directory)
        return sl_error(SL_ERR_INVALID, "resume auto needs a directory for checkpoints");
    if (launch->restarts > 0 && options->directory)
        SL_TRY(sli_save_directory_has_saved(options->directory, launch->job, &has_saved));
    const int facts[] = {is_auto           ? SLI_RESUME_AUTO
                         : options->resume ? SLI_RESUME_NAMED
                                           : SLI_RESUME_NOTHING,
                         launch->restarts > 0,
                         has_saved            ? SLI_SAVED_SOME
                         : options->directory ? SLI_SAVED_NONE
                                              : SLI_SAVES_NOTHING};
    run->found.start = sli_case_find(sli_start_cases, SLI_START_CASES, facts);
    return SL_OK;
}

const char *sli_resume_asked(const sl_save_options *options, int start)
{
    return start == SLI_START_NAMED                              ? options->resume
           : start == SLI_START_NEWEST || start == SLI_START_OWN ? options->directory
                                                                 : NULL;
}

sl_status sli_resume_open(sli_run *run, const sl_save_options *options)
{
    sli_resume *out = &run->resume;
    sli_identity worker;
    bool single;
    SL_TRY(decide_start(run, options));
    run->asked = sli_resume_asked(options, run->found.start);
    if (!run->asked)
        return SL_OK;
    const checkpoint_search search = {.path = run->asked,
                                      .is_directory = run->found.start != SLI_START_NAMED,
                                      .is_whole = true,
                                      .job = run->found.start == SLI_START_OWN ? run->launch.job
                                                                               : NULL,
                                      .run = run};
    SL_TRY(open_checkpoint(&search, &single, &out->path, &out->reader));
    if (!out->reader && run->found.start == SLI_START_NAMED)
        return sl_error(SL_ERR_NOT_FOUND, "%s: there is no checkpoint to resume from", run->asked);
    if (!out->reader)
        return SL_OK;
    SL_TRY(sl_error_context(sli_run_state_read(sl_checkpoint_state(out->reader), &out->recorded),
                            "%s: ", out->path));
    int64_t last_step = single ? 0 : sli_last_step_read(run->asked, &worker);
    if (last_step > 0 && strcmp(worker.text, out->recorded.identity.text) == 0)
        out->last_step = last_step;
    run->found.resumes = true;
    run->found.lr = out->recorded.lr;
    run->found.shards = out->recorded.shards;
    run->found.chunks = out->recorded.chunks;
    return SL_OK;
}

sl_status sl_train_find_settings(const char *resume, char **path, char **settings)
{
    sl_checkpoint_reader *reader = NULL;
    bool single;
    SLI_CHECK_NOT_NULL(resume);
    SLI_CHECK_NOT_NULL(path);
    SLI_CHECK_NOT_NULL(settings);
    *path = *settings = NULL;
    sl_status status =
        open_checkpoint(&(checkpoint_search){.path = resume}, &single, path, &reader);
    if (reader)
        status = sli_run_state_settings(sl_checkpoint_state(reader), settings);
    sl_checkpoint_close(&reader);
    if (status != SL_OK) {
        free(*path);
        *path = NULL;
    }
    return status;
}

void sli_resume_clear(sli_resume *resume)
{
    sl_checkpoint_close(&resume->reader);
    free(resume->path);
    *resume = (sli_resume){0};
}

sl_status sli_resume_report(const sli_run *run)
{
    const sli_resume *resume = &run->resume;
    int64_t step = resume->recorded.position.steps;
    if (!resume->reader)
        return SL_OK;
    return sli_report_checkpoint(run,
                                 &(sl_checkpoint_event){
                                     .kind = SL_CHECKPOINT_RESUMED,
                                     .path = resume->path,
                                     .step = step,
                                     .lost_steps =
                                         resume->last_step > step ? resume->last_step - step : 0,
                                 });
}

/* ---- Tensors ---------------------------------------------------------------------------- */

/* What the first replica reads at once, and the others get. */
enum { BUFFER_BYTES = 1 << 24 };

/* Copies what an entry has here of the tensor's elements first … end - 1, which `buffer` has. */
static void copy_elements(const sl_safetensors_item *item, const sli_tensor_entry *entry,
                          int64_t first, int64_t end, const char *buffer)
{
    int64_t bytes = (int64_t)sl_dtype_bytes(item->dtype), own_end = entry->first + entry->count;
    int64_t low = entry->first > first ? entry->first : first, high = own_end < end ? own_end : end;
    if (low < high)
        memcpy((char *)item->data + (low - entry->first) * bytes, buffer + (low - first) * bytes,
               (size_t)((high - low) * bytes));
}

/* Gives every rank what it has of tensor `index`. */
static sl_status broadcast_tensor(const sl_checkpoint_reader *reader, const char *part,
                                  const sli_replica *replica, const sli_tensors *tensors,
                                  size_t index, char *buffer)
{
    const sl_safetensors_item *item = &tensors->items[index];
    const sli_checkpoint_entry *tensor =
        reader ? sli_checkpoint_find_tensor(reader, part, item->name) : NULL;
    int64_t elements = sl_shape_count(&item->shape);
    int64_t most = BUFFER_BYTES / (int64_t)sl_dtype_bytes(item->dtype);
    for (int64_t at = 0, count; at < elements; at += count) {
        count = elements - at < most ? elements - at : most;
        if (reader)
            SL_TRY(sli_checkpoint_read_elements(reader, tensor, at, count, buffer));
        SL_TRY(sl_group_broadcast(replica->all, buffer, count, item->dtype, 0, NULL));
        size_t part_index = index;
        do {
            copy_elements(&tensors->items[part_index], &tensors->entries[part_index], at,
                          at + count, buffer);
            part_index = tensors->entries[part_index].next;
        } while (part_index > 0);
    }
    return SL_OK;
}

/* Gives every rank what it has of the part's tensors; `from` is rank 0's, and was read whole
 * before. No rank holds more of them than this and a buffer. */
static sl_status broadcast_tensors(const sl_checkpoint_reader *reader, const char *part,
                                   const sli_replica *replica, sli_tensors *tensors)
{
    if (!replica->all)
        return sli_tensors_read(reader, part, tensors);
    SL_TRY(sli_tensors_open(tensors, false));
    if (reader)
        SL_TRY(sli_checkpoint_check_items(reader, part, tensors->items, tensors->count));
    char *buffer = malloc(BUFFER_BYTES);
    sl_status status = buffer ? SL_OK : sli_no_memory(NULL, "reading tensors");
    for (size_t i = 0; i < tensors->count && status == SL_OK; i++)
        status = broadcast_tensor(reader, part, replica, tensors, i, buffer);
    free(buffer);
    return status == SL_OK ? sli_tensors_store(tensors) : status;
}

/* Adapters belong to the weights that they were trained with alone. */
static sl_status check_base(const sli_run *run)
{
    const sli_resume *resume = &run->resume;
    return resume->reader && sli_run_has_adapters(run)
               ? sli_base_compare(resume->path, resume->recorded.base, run->base)
               : SL_OK;
}

sl_status sli_resume_model(const sli_run *run)
{
    const sl_checkpoint_reader *reader = run->resume.reader;
    bool adapts = sli_run_has_adapters(run);
    const char *part = adapts ? SLI_ADAPTER_PART : SLI_MODEL_PART;
    sli_tensors tensors = {0};
    SL_TRY(check_base(run));
    SL_TRY(sli_tensors_of_model(run->replica.pipe, &tensors));
    sl_status status;
    SL_TRY_OR_FAIL(adapts ? sli_adapter_select(&tensors, true) : SL_OK);
    if (run->replica.pipe_group)
        status = broadcast_tensors(reader, part, &run->replica, &tensors);
    else if (reader) /* the others get it when they join */
        status = sli_tensors_read(reader, part, &tensors);
fail:
    sli_tensors_clear(&tensors);
    return status;
}

/* Parameters without a number of steps of their own have taken all steps of the run. */
static sl_status resume_optimizers(sli_run *run, bool has_steps)
{
    sli_tensors tensors = {0};
    for (int s = 0; s < sl_pipe_stages(run->replica.pipe); s++)
        if (sl_pipe_parameters(run->replica.pipe, s))
            sli_optimizer_set_steps(sli_pipe_optimizer_own(run->optimizer, s), run->position.steps);
    sl_status status;
    SL_TRY_OR_FAIL(sli_tensors_of_optimizer(run->optimizer, has_steps, &tensors));
    status = broadcast_tensors(run->resume.reader, "optimizer", &run->replica, &tensors);
fail:
    sli_tensors_clear(&tensors);
    return status;
}

/* The best parameters are the model's where the checkpoint was made right after their validation. A
 * copy that the replicas of this process share is the first one's to read. */
static sl_status resume_best(sli_run *run)
{
    const sl_checkpoint_reader *reader = run->resume.reader;
    const sli_replica *replica = &run->replica;
    sli_tensors tensors = {0};
    bool shared = run->best->shared;
    sl_status status = SL_OK;
    if (!isfinite(run->position.best_loss))
        return SL_OK;
    SL_TRY(sli_best_keep(run->best, replica));
    if (run->position.best_step == run->position.steps)
        return SL_OK;
    if (reader || !shared)
        SL_TRY_OR_FAIL(sli_tensors_of_buckets(replica->pipe, run->best->copies, &tensors));
    if (!shared)
        status = broadcast_tensors(reader, "best", replica, &tensors);
    else if (reader)
        status = sli_tensors_read(reader, "best", &tensors);
fail:
    sli_tensors_clear(&tensors);
    SL_TRY(status);
    return shared ? sl_group_barrier(replica->group, NULL) : SL_OK;
}

/* Every rank gets the position that the first one has read. */
sl_status sli_resume_rest(sli_run *run)
{
    const sl_checkpoint_reader *reader = run->resume.reader;
    struct {
        int64_t has_steps;
        sli_position position;
    } message = {reader && sli_checkpoint_has_steps(reader), run->resume.recorded.position};
    _Static_assert(sizeof message % sizeof(int64_t) == 0, "a message is words");
    if (!run->found.resumes)
        return SL_OK;
    if (run->replica.all)
        SL_TRY(sl_group_broadcast(run->replica.all, &message, sizeof message / sizeof(int64_t),
                                  SL_I64, 0, NULL));
    run->position = message.position;
    SL_TRY(resume_optimizers(run, message.has_steps != 0));
    return resume_best(run);
}

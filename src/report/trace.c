/* Pipeline timelines as Chrome's trace events (JSON), which Perfetto and chrome://tracing open: a
 * complete event for each action. Predicted and measured are two processes, whose threads are the
 * ranks. The measured steps of all epochs stand one behind the other. */
#include "core/error.h"
#include "core/json.h"
#include "parallel/schedule/timeline.h"
#include "report/run_file.h"

#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>

enum { PREDICTED = 1, MEASURED = 2 };

/* Perfetto takes a thread with the number 0 or that of its process for the process's main one. */
static int thread_number(int process, int rank)
{
    return 1000 * process + rank;
}

/* After the last event; the next one overwrites it, so that the file is whole between records. */
static const char ending[] = "\n]}\n";

static void name_process(FILE *to, int process, const char *name, int ranks)
{
    fprintf(
        to,
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"%s\"}},\n"
        "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
        process, name, process, process);
    for (int rank = 0; rank < ranks; rank++)
        fprintf(to,
                ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{"
                "\"name\":\"rank %d\"}}",
                process, thread_number(process, rank), rank);
}

/* A pipe is refused before it is opened, which would wait for a reader; a terminal after that. */
static sl_status open_trace(sl_run_file *file)
{
    struct stat found;
    bool is_pipe = stat(file->path, &found) == 0 && S_ISFIFO(found.st_mode);
    if (!is_pipe)
        SL_TRY(sli_run_file_open(file, file->path));
    if (!is_pipe && fseek(file->file, 0, SEEK_CUR) == 0)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "%s: a trace needs a file, whose end each record overwrites, not a pipe",
                    file->path);
}

static sl_status start_trace(void *context, const sl_run_info *info)
{
    sl_run_file *file = context;
    int ranks = info->rank_count / info->replicas;
    SL_TRY(open_trace(file));
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file->file);
    name_process(file->file, PREDICTED, "predicted", ranks);
    fputs(",\n", file->file);
    name_process(file->file, MEASURED, "measured", ranks);
    fputs(ending, file->file);
    return sli_run_file_flush(file);
}

/* A start and an end are rounded alike: Perfetto drops an action that begins before the end of the
 * one before it, by however little. */
static void print_action(sl_run_file *file, int process, const sl_pipeline_info *info, int index)
{
    char name[SLI_ACTION_TEXT_BYTES];
    const sl_utilization *of = info->utilization;
    sl_timeline_entry entry = process == PREDICTED ? of->predicted[index] : of->measured[index];
    int64_t start_ns = llround(1e3 * file->end + 1e9 * entry.start),
            end_ns = llround(1e3 * file->end + 1e9 * entry.end);
    fprintf(file->file,
            ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,"
            "\"tid\":%d,\"args\":{\"stage\":%d,\"micro\":%d,\"epoch\":%" PRId64 ",\"step\":%" PRId64
            "}}",
            sli_action_text(entry.action, name), sli_action_name(entry.action.kind),
            1e-3 * (double)start_ns, 1e-3 * (double)(end_ns - start_ns), process,
            thread_number(process, of->placement[entry.action.stage]), entry.action.stage,
            entry.action.micro, info->epoch, info->step);
}

static double last_end(const sl_utilization *of)
{
    double end = of->seconds;
    for (int i = 0; i < of->action_count; i++)
        end = of->predicted[i].end > end ? of->predicted[i].end : end;
    return end;
}

static sl_status trace_pipeline(void *context, const sl_pipeline_info *info)
{
    sl_run_file *file = context;
    if (!file->file)
        return SL_OK;
    /* start_trace has refused a file where this fails. */
    (void)fseek(file->file, -(long)(sizeof ending - 1), SEEK_CUR);
    sli_c_numbers scope = sli_c_numbers_begin();
    for (int i = 0; i < info->utilization->action_count; i++) {
        print_action(file, PREDICTED, info, i);
        print_action(file, MEASURED, info, i);
    }
    sli_c_numbers_end(scope);
    fputs(ending, file->file);
    file->end += 1e6 * last_end(info->utilization);
    return sli_run_file_flush(file);
}

sl_status sl_run_trace_create(const char *path, sl_reporter_failed *failed, void *context,
                              sl_run_file **out)
{
    return sli_run_file_create(path, failed, context,
                               (sl_reporter){.started = start_trace, .pipeline = trace_pipeline},
                               out);
}

/* Pipeline timelines as Chrome's trace events (JSON), which Perfetto and chrome://tracing open: a
 * complete event for each action. Predicted and measured are two processes, whose threads are the
 * ranks. The measured steps of all epochs stand one behind the other. */
#include "core/error.h"
#include "core/json.h"
#include "parallel/schedule/timeline.h"
#include "report/run_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PREDICTED = 1, MEASURED = 2 };

/* Perfetto takes a thread with the number 0 or that of its process for the process's main one. */
static int thread_number(int process, int rank)
{
    return 1000 * process + rank;
}

/* After the last event; the next one overwrites it, so that the file is whole between records. */
static const char ending[] = "\n]}\n";

/* A pipe is refused before it is opened, which would wait for a reader; a terminal after that. */
sl_status sli_trace_open(const char *path, sli_run_file *out)
{
    struct stat found;
    bool is_pipe = stat(path, &found) == 0 && S_ISFIFO(found.st_mode);
    *out = (sli_run_file){.file = NULL};
    if (!is_pipe)
        SL_TRY(sli_run_file_open(path, out));
    if (!is_pipe && fseek(out->file, 0, SEEK_CUR) == 0)
        return SL_OK;
    sli_run_file_close(out);
    return sl_error(SL_ERR_INVALID,
                    "%s: a trace needs a file, whose end each record overwrites, not a pipe", path);
}

static void name_process(FILE *file, int process, const char *name)
{
    fprintf(
        file,
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"%s\"}},\n"
        "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
        process, name, process, process);
}

static void name_thread(FILE *file, int process, int rank)
{
    fprintf(file,
            ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{"
            "\"name\":\"rank %d\"}}",
            process, thread_number(process, rank), rank);
}

static sl_status begin_trace(sli_run_file *trace)
{
    FILE *file = trace->file;
    trace->has_begun = true;
    trace->end = trace->ranks = 0;
    rewind(file);
    if (ftruncate(fileno(file), 0) != 0)
        return sl_error(SL_ERR_IO, "%s: cannot be emptied: %s", trace->path, strerror(errno));
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file);
    name_process(file, PREDICTED, "predicted");
    fputs(",\n", file);
    name_process(file, MEASURED, "measured");
    fputs(ending, file);
    return sli_run_file_flush(trace);
}

static void print_action(const sli_run_file *trace, int process,
                         const sli_history_pipeline *pipeline, int index)
{
    char name[SLI_ACTION_TEXT_BYTES];
    const sl_timeline_entry *entry =
        process == PREDICTED ? &pipeline->predicted[index] : &pipeline->measured[index];
    sl_action action = entry->action;
    fprintf(trace->file,
            ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.0f,\"dur\":%.0f,\"pid\":%d,"
            "\"tid\":%d,\"args\":{\"stage\":%d,\"micro\":%d,\"slice\":%d,\"epoch\":%" PRId64
            ",\"step\":%" PRId64 "}}",
            sli_action_text(action, name), sli_action_name(action.kind),
            trace->end + 1e6 * entry->start, 1e6 * (entry->end - entry->start), process,
            thread_number(process, pipeline->placement[action.stage]), action.stage,
            sli_action_micro(action), sli_action_slice(action), pipeline->epoch, pipeline->step);
}

static double last_end(const sli_history_pipeline *pipeline)
{
    double end = 0;
    for (int i = 0; i < pipeline->action_count; i++)
        end = fmax(end, fmax(pipeline->measured[i].end, pipeline->predicted[i].end));
    return 1e6 * end;
}

static sl_status add_pipeline(sli_run_file *trace, const sli_history_pipeline *pipeline)
{
    FILE *file = trace->file;
    if (!trace->has_begun || pipeline->replica > 0 || !pipeline->ends_epoch)
        return SL_OK;
    if (pipeline->action_count == 0)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "%s: a step has more than %d actions, and the log has no timelines of such "
                        "steps",
                        trace->path, SL_RUN_LOG_MOST_ACTIONS);
    (void)fseek(file, -(long)(sizeof ending - 1), SEEK_END);
    sli_c_numbers scope = sli_c_numbers_begin();
    for (; trace->ranks < pipeline->ranks; trace->ranks++) {
        name_thread(file, PREDICTED, trace->ranks);
        name_thread(file, MEASURED, trace->ranks);
    }
    for (int i = 0; i < pipeline->action_count; i++) {
        print_action(trace, PREDICTED, pipeline, i);
        print_action(trace, MEASURED, pipeline, i);
    }
    sli_c_numbers_end(scope);
    fputs(ending, file);
    trace->end += rint(last_end(pipeline));
    return sli_run_file_flush(trace);
}

sl_status sli_trace_add(sli_run_file *trace, sli_record_kind kind, const void *record)
{
    if (kind == SLI_RECORD_RUN)
        return begin_trace(trace);
    return kind == SLI_RECORD_PIPELINE ? add_pipeline(trace, record) : SL_OK;
}

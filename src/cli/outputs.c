/* What a run leaves: its log. What shows the log (--serve, --trace, --tensorboard) is a reader of
 * it, `sluice watch --child`, a process in a group of its own, which cannot hold up the run.
 *
 *     the run ── log ──▶ reader
 *         it is ready  ◀── its standard output: one line
 *         has ended    ──▶ its standard input: the end, which also comes where the run is killed
 */
#define _GNU_SOURCE /* pipe2, close_range */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { START_MS = 60000, END_MS = 30000, TURN_MS = 10 };

/* ---- The reader's start --------------------------------------------------------------------- */

/* Becomes the reader. The log may be open without a name. */
_Noreturn static void become_reader(const char *const *words, int input, int output, int log)
{
    enum { LOG = STDERR_FILENO + 1 };
    setpgid(0, 0);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    if (log >= 0 && dup2(log, LOG) == LOG)
        fcntl(LOG, F_SETFD, 0);
    close_range(log >= 0 ? LOG + 1 : LOG, ~0U, 0);
    execv("/proc/self/exe", (char *const *)words);
    _exit(CLI_EXIT_ERROR);
}

static void write_words(const cli_progress_options *options, const char *words[12])
{
    const char *const given[][2] = {{"--serve", options->serve},
                                    {"--trace", options->trace},
                                    {"--tensorboard", options->tensorboard}};
    int count = 0;
    words[count++] = "sluice";
    words[count++] = "watch";
    words[count++] = "--child";
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        for (int part = 0; part < 2 && given[i][1]; part++)
            words[count++] = given[i][part];
    words[count++] = "--";
    words[count++] = options->log_json ? options->log_json : "/proc/self/fd/3";
    words[count] = NULL;
}

/* Reads the line that `sluice watch --child` prints when it is ready: the page's address, empty
 * without one, or "!" and why it cannot start. */
static sl_status read_ready_line(int fd)
{
    char line[PIPE_BUF];
    struct pollfd input = {.fd = fd, .events = POLLIN};
    int ready;
    while ((ready = poll(&input, 1, START_MS)) < 0 && errno == EINTR)
        ;
    ssize_t bytes = ready > 0 ? read(fd, line, sizeof line) : 0;
    if (bytes <= 0)
        return sl_error(SL_ERR_IO, "sluice watch, which would show the run, did not start");
    line[bytes - 1] = '\0';
    if (line[0] == '!')
        return sl_error(SL_ERR_IO, "%s", line + 1);
    if (line[0])
        cli_complain("the run is shown at %s", line);
    return SL_OK;
}

static sl_status start_reader(const cli_progress_options *options, cli_outputs *out)
{
    const char *words[12];
    int input[2] = {-1, -1}, output[2] = {-1, -1};
    write_words(options, words);
    out->reader = pipe2(input, O_CLOEXEC) == 0 && pipe2(output, O_CLOEXEC) == 0 ? fork() : -1;
    if (out->reader == 0)
        become_reader(words, input[0], output[1], out->unnamed_log ? fileno(out->unnamed_log) : -1);
    int error = errno;
    close(input[0]);
    close(output[1]);
    out->reader_input = input[1];
    sl_status status = out->reader > 0 ? read_ready_line(output[0])
                                       : sl_error(SL_ERR_IO, "sluice watch cannot be started: %s",
                                                  strerror(error));
    close(output[0]);
    if (status != SL_OK && out->reader > 0) {
        kill(out->reader, SIGKILL);
        (void)waitpid(out->reader, NULL, 0);
        out->reader = 0;
    }
    return status;
}

/* ---- The reader's end ----------------------------------------------------------------------- */

/* Why it has ended; NULL: as it should. */
static const char *end_reader(cli_outputs *outputs, int status)
{
    outputs->reader = 0;
    snprintf(outputs->reason, sizeof outputs->reason,
             "sluice watch, which shows the run, has ended: %s",
             WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "it failed");
    return status == 0 ? NULL : outputs->reason;
}

const char *cli_outputs_check(cli_outputs *outputs)
{
    int status = 0;
    if (outputs->reader <= 0 || waitpid(outputs->reader, &status, WNOHANG) == 0)
        return NULL;
    return end_reader(outputs, status);
}

/* Waits while it runs, but not for ever. */
static const char *await_reader(cli_outputs *outputs)
{
    int status = 0;
    pid_t found = 0;
    for (int ms = 0; ms < END_MS && found == 0; ms += TURN_MS) {
        found = waitpid(outputs->reader, &status, WNOHANG | WUNTRACED);
        if (found == 0)
            (void)poll(NULL, 0, TURN_MS);
    }
    if (found != 0 && !WIFSTOPPED(status))
        return end_reader(outputs, status);
    kill(outputs->reader, SIGKILL);
    (void)waitpid(outputs->reader, NULL, 0);
    return "sluice watch, which shows the run, has not ended with it and was killed: what it "
           "writes may lack the run's end";
}

/* ---- All ---------------------------------------------------------------------------------- */

static sl_status create_log(const cli_progress_options *options, sl_reporter_failed *failed,
                            void *context, cli_outputs *out)
{
    char unnamed[32];
    const char *path = options->log_json;
    if (!path) {
        out->unnamed_log = tmpfile();
        if (!out->unnamed_log)
            return sl_error(SL_ERR_IO, "no file for the run's records: %s", strerror(errno));
        snprintf(unnamed, sizeof unnamed, "/proc/self/fd/%d", fileno(out->unnamed_log));
        path = unnamed;
    }
    return sl_run_log_create(path, options->command, failed, context, &out->log);
}

sl_status cli_outputs_create(const cli_progress_options *options, sl_reporter_failed *failed,
                             void *context, cli_outputs *out)
{
    bool is_read = options->serve || options->trace || options->tensorboard;
    if (is_read || options->log_json)
        SL_TRY(create_log(options, failed, context, out));
    return is_read ? start_reader(options, out) : SL_OK;
}

void cli_outputs_clear(cli_outputs *outputs)
{
    sl_run_log_destroy(&outputs->log);
    if (outputs->reader_input > 0)
        close(outputs->reader_input);
    const char *reason = outputs->reader > 0 ? await_reader(outputs) : NULL;
    if (reason)
        cli_complain("warning: %s", reason);
    if (outputs->unnamed_log)
        (void)fclose(outputs->unnamed_log);
}

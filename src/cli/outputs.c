/* What a run leaves: its log. What shows the log (--serve, --trace, --tensorboard) is a reader of
 * it, `sluice watch --child`, in a process of its own, which cannot hold up the run.
 *
 *     this process      ── log ──▶        the reader, in a process group of its own
 *       knows that it is ready  ◀── its standard output: one line
 *       has gone, or has ended  ──▶ its standard input: the end
 *
 * The reader so ends after the run, however that ends, when it has written everything. */
#define _GNU_SOURCE /* pipe2, posix_spawn_file_actions_addclosefrom_np */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { START_SECONDS = 60, END_SECONDS = 30, LOG_FD = 3 /* in the reader, of an unnamed log */ };

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- The reader's start --------------------------------------------------------------------- */

/* "sluice watch --child --serve 8080 -- log.jsonl" */
static void write_words(const cli_progress_options *options, const char *words[12])
{
    static const char unnamed[] = "/proc/self/fd/3";
    const char *const outputs[][2] = {{"--serve", options->serve},
                                      {"--trace", options->trace},
                                      {"--tensorboard", options->tensorboard}};
    int count = 0;
    words[count++] = "sluice";
    words[count++] = "watch";
    words[count++] = "--child";
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        if (!outputs[i][1])
            continue;
        words[count++] = outputs[i][0];
        words[count++] = outputs[i][1];
    }
    words[count++] = "--";
    words[count++] = options->log_json ? options->log_json : unnamed;
    words[count] = NULL;
}

/* Returns errno. */
static int spawn(const char *const *words, int input, int output, int log, pid_t *out)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    if (posix_spawn_file_actions_init(&files) != 0 || posix_spawnattr_init(&attributes) != 0)
        return ENOMEM;
    posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    if (log >= 0)
        posix_spawn_file_actions_adddup2(&files, log, LOG_FD);
    posix_spawn_file_actions_addclosefrom_np(&files, log >= 0 ? LOG_FD + 1 : LOG_FD);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    int error =
        posix_spawn(out, "/proc/self/exe", &files, &attributes, (char *const *)words, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

/* One line without its end; false where none comes. */
static bool read_line(int fd, char *text, size_t room)
{
    double end = seconds_now() + START_SECONDS;
    for (size_t used = 0; used < room; used++) {
        struct pollfd input = {.fd = fd, .events = POLLIN};
        int left = (int)(1e3 * (end - seconds_now()));
        if (left <= 0 || (poll(&input, 1, left) < 0 && errno != EINTR))
            return false;
        ssize_t got = input.revents ? read(fd, text + used, 1) : 0;
        if (input.revents && got <= 0)
            return false;
        if (got > 0 && text[used] == '\n') {
            text[used] = '\0';
            return true;
        }
        used -= got <= 0;
    }
    return false;
}

/* What the reader has said: where it shows the run, or why it cannot. */
static sl_status hear_reader(int fd)
{
    char text[4096];
    if (!read_line(fd, text, sizeof text))
        return sl_error(SL_ERR_IO, "sluice watch, which would show the run, did not start");
    if (text[0] == '!')
        return sl_error(SL_ERR_IO, "%s", text + 1);
    if (text[0])
        cli_complain("the run is shown at %s", text);
    return SL_OK;
}

static sl_status start_reader(const cli_progress_options *options, cli_outputs *out)
{
    const char *words[12];
    int input[2] = {-1, -1}, output[2] = {-1, -1};
    sl_status status;
    write_words(options, words);
    bool piped = pipe2(input, O_CLOEXEC) == 0 && pipe2(output, O_CLOEXEC) == 0;
    int error = piped ? spawn(words, input[0], output[1],
                              out->unnamed_log ? fileno(out->unnamed_log) : -1, &out->reader)
                      : errno;
    close(input[0]);
    close(output[1]);
    out->reader_input = input[1];
    if (error == 0) {
        status = hear_reader(output[0]);
    } else {
        out->reader = 0;
        status = sl_error(SL_ERR_IO, "sluice watch cannot be started: %s", strerror(error));
    }
    close(output[0]);
    out->reader_refused = status != SL_OK;
    return status;
}

/* ---- The reader's end ----------------------------------------------------------------------- */

/* "was ended by signal 9 (Killed)" */
static const char *describe_end(int status, char text[64])
{
    if (WIFSIGNALED(status))
        snprintf(text, 64, "was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(text, 64, "has ended with status %d", WEXITSTATUS(status));
    return text;
}

void cli_outputs_check(cli_outputs *outputs, sl_reporter_failed *failed, void *context)
{
    char reason[128], end[64];
    int status = 0;
    if (outputs->reader == 0 || waitpid(outputs->reader, &status, WNOHANG) == 0)
        return;
    outputs->reader = 0;
    snprintf(reason, sizeof reason, "sluice watch, which shows the run, %s",
             describe_end(status, end));
    failed(context, reason);
}

/* Waits for its end while it runs, but not for ever. */
static void await_reader(cli_outputs *outputs)
{
    char text[64];
    int status = 0;
    pid_t ended = 0;
    double end = seconds_now() + END_SECONDS;
    while ((ended = waitpid(outputs->reader, &status, WNOHANG | WUNTRACED)) == 0 &&
           seconds_now() < end)
        (void)poll(NULL, 0, 10);
    if (ended == 0 || (ended > 0 && WIFSTOPPED(status))) {
        kill(outputs->reader, SIGKILL);
        (void)waitpid(outputs->reader, NULL, 0);
        cli_complain("warning: sluice watch, which shows the run, has not ended with it and was "
                     "killed: what it writes may lack the run's end");
    } else if (status != 0 && !outputs->reader_refused) {
        cli_complain("warning: sluice watch, which shows the run, %s", describe_end(status, text));
    }
    outputs->reader = 0;
}

/* ---- All ---------------------------------------------------------------------------------- */

/* The reader's log may have no name. */
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
    SL_TRY(sl_run_log_create(path, failed, context, &out->log));
    return sl_run_log_set_command(out->log, options->command);
}

sl_status cli_outputs_create(const cli_progress_options *options, sl_reporter_failed *failed,
                             void *context, cli_outputs *out)
{
    bool is_read = options->serve || options->trace || options->tensorboard;
    if (!is_read && !options->log_json)
        return SL_OK;
    SL_TRY(create_log(options, failed, context, out));
    return is_read ? start_reader(options, out) : SL_OK;
}

void cli_outputs_clear(cli_outputs *outputs)
{
    sl_run_log_destroy(&outputs->log);
    if (outputs->reader_input > 0)
        close(outputs->reader_input);
    if (outputs->reader > 0)
        await_reader(outputs);
    if (outputs->unnamed_log)
        (void)fclose(outputs->unnamed_log);
}

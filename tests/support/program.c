#define _GNU_SOURCE /* pseudo-terminals */
#include "support/program.h"

#include <fcntl.h>
#include <regex.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { LINE_BYTES = 16384, WORDS = 1100 };

/* ---- Running ------------------------------------------------------------------------------ */

/* A command line, and the words in it. */
typedef struct command_line {
    char text[LINE_BYTES];
    char *words[WORDS + 2];
} command_line;

bool program_exists(void)
{
    const char *program = getenv("SLUICE_PROGRAM");
    if (program && access(program, X_OK) == 0)
        return true;
    print_message("skipped: SLUICE_PROGRAM does not name a program\n");
    return false;
}

bool mpirun_exists(void)
{
    if (system("mpirun --version >/dev/null 2>&1") == 0)
        return true;
    print_message("skipped: there is no mpirun\n");
    return false;
}

static void unquote(char *word)
{
    if (strcmp(word, "''") == 0)
        *word = '\0';
    for (char *c = word; *c; c++)
        if (*c == '$')
            *c = ' ';
}

static void cut_words(command_line *line, const char *format, va_list values)
{
    int length = vsnprintf(line->text, sizeof line->text, format, values);
    assert_in_range(length, 0, sizeof line->text - 1);
    int count = 0;
    line->words[count++] = getenv("SLUICE_PROGRAM");
    char *rest = line->text;
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        assert_true(count <= WORDS);
        unquote(word);
        line->words[count++] = word;
    }
    line->words[count] = NULL;
}

static pid_t spawn(command_line *line, int out, int err)
{
    pid_t child;
    posix_spawn_file_actions_t actions;
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
    assert_int_equal(posix_spawn(&child, line->words[0], &actions, NULL, line->words, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

static int wait_for(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* What was written to a temporary file, which is closed. */
static void collect(FILE *file, char *text, size_t room)
{
    rewind(file);
    text[fread(text, 1, room - 1, file)] = '\0';
    fclose(file);
}

static void run_line(program_run *run, command_line *line)
{
    FILE *out = tmpfile(), *err = tmpfile();
    assert_non_null(out);
    assert_non_null(err);
    run->status = wait_for(spawn(line, fileno(out), fileno(err)));
    collect(out, run->out, sizeof run->out);
    collect(err, run->err, sizeof run->err);
}

void program_start(program_run *run, const char *format, ...)
{
    command_line line;
    va_list values;
    va_start(values, format);
    cut_words(&line, format, values);
    va_end(values);
    run_line(run, &line);
}

void program_succeed(program_run *run, const char *format, ...)
{
    command_line line;
    va_list values;
    va_start(values, format);
    cut_words(&line, format, values);
    va_end(values);
    run_line(run, &line);
    if (run->status != 0 || run->err[0])
        fail_msg("expected success of \"%s\", got status %d: %s", format, run->status, run->err);
}

/* Reads what a terminal's other side shows until nobody has it open; more than fits is dropped. */
static void read_terminal(int terminal, char *text, size_t room)
{
    size_t used = 0;
    char bytes[512];
    for (ssize_t count; (count = read(terminal, bytes, sizeof bytes)) > 0;)
        for (ssize_t i = 0; i < count && used + 1 < room; i++)
            text[used++] = bytes[i];
    text[used] = '\0';
}

void program_start_on_terminal(program_run *run, const char *format, ...)
{
    command_line line;
    va_list values;
    va_start(values, format);
    cut_words(&line, format, values);
    va_end(values);
    FILE *out = tmpfile();
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_non_null(out);
    assert_true(terminal >= 0);
    assert_int_equal(grantpt(terminal), 0);
    assert_int_equal(unlockpt(terminal), 0);
    int side = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(side >= 0);
    pid_t child = spawn(&line, fileno(out), side);
    close(side);
    read_terminal(terminal, run->err, sizeof run->err);
    close(terminal);
    run->status = wait_for(child);
    collect(out, run->out, sizeof run->out);
}

int corpus_create(void **state)
{
    program_run made;
    scratch_create(state);
    scratch *dir = *state;
    program_succeed(&made, "data --synthetic %s --tokens 4000", dir->directory);
    assert_int_equal(scratch_entries(dir, 0), CORPUS_FILES);
    return 0;
}

int corpus_create_trained(void **state, program_run *trained)
{
    corpus_create(state);
    scratch *dir = *state;
    program_succeed(trained,
                    "train --data %s " TINY_MODEL " " TINY_BATCH
                    " --batch-size 8 --epochs 2 --max-batches 20 --save %s/model",
                    dir->directory, dir->directory);
    return 0;
}

/* ---- Checks ------------------------------------------------------------------------------- */

void check_refused_at(const program_run *run, int status, const char *text, const char *file,
                      int line)
{
    const char *end = strchr(run->err, '\n');
    bool one_line = end && end[1] == '\0' && strncmp(run->err, "sluice: ", 8) == 0;
    if (run->status == status && one_line && strstr(run->err, text) && !run->out[0])
        return;
    print_error("expected status %d and one sentence with \"%s\", got status %d and: %s%s\n",
                status, text, run->status, run->err, run->out);
    _fail(file, line);
}

void check_text_at(const char *text, const char *part, bool there, const char *file, int line)
{
    if ((strstr(text, part) != NULL) == there)
        return;
    print_error("expected %s\"%s\" in: %s\n", there ? "" : "no ", part, text);
    _fail(file, line);
}

double number_after(const char *text, const char *label)
{
    const char *found = strstr(text, label);
    if (!found)
        fail_msg("expected \"%s\" in: %s", label, text);
    char *end;
    double value = strtod(found + strlen(label), &end);
    if (end == found + strlen(label))
        fail_msg("expected a number after \"%s\" in: %s", label, text);
    return value;
}

void check_line(const char *text, const char *pattern)
{
    regex_t compiled;
    assert_int_equal(regcomp(&compiled, pattern, REG_EXTENDED | REG_NEWLINE | REG_NOSUB), 0);
    int missing = regexec(&compiled, text, 0, NULL, 0);
    regfree(&compiled);
    if (missing)
        fail_msg("expected a line like \"%s\" in: %s", pattern, text);
}

/* The program: finds the command and hands it the rest of the line. */
#include "cli/cli.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

const cli_command *const cli_commands[] = {
    &cmd_train,    &cmd_plan,      &cmd_profile,  &cmd_eval,
    &cmd_generate, &cmd_model,     &cmd_schedule, &cmd_data,
    &cmd_tokenize, &cmd_tokenizer, &cmd_export,   &cmd_checkpoint,
    &cmd_report,   &cmd_watch,     &cmd_launch,   NULL};

/* Ends the program where there is none of that name. */
static const cli_command *find_command(const char *name)
{
    cli_near near = {.word = name};
    for (int i = 0; cli_commands[i]; i++) {
        if (strcmp(name, cli_commands[i]->name) == 0)
            return cli_commands[i];
        cli_near_add(&near, cli_commands[i]->name);
    }
    cli_refuse_near(&near, "", "there is no such command (see sluice --help), got \"%s\"", name);
}

/* sluice help [COMMAND]; the other forms print documentation. */
static int print_help(const char *text, const char *command)
{
    if (!text)
        cli_help_print(stdout, NULL);
    else if (strcmp(text, "--markdown") == 0)
        cli_help_print_markdown();
    else if (strcmp(text, "--man") == 0)
        cli_help_print_man(command ? find_command(command) : NULL);
    else if (strcmp(text, "--completion") == 0)
        cli_help_print_completion();
    else
        cli_help_print(stdout, find_command(text));
    return cli_finish(SL_OK);
}

static int run_command(const cli_command *chosen, char **argv)
{
    cli_line line;
    void *settings = cli_allocate(1, chosen->settings_bytes);
    sl_status status;
    SL_TRY_OR_FAIL(cli_line_read(chosen, argv, settings, &line));
    SL_TRY_OR_FAIL(chosen->run(&line, settings));
fail:
    if (status != SL_OK)
        cli_name_options(chosen, status);
    int exit_status = cli_finish(status);
    if (status == SL_OK && exit_status == 0)
        exit_status = line.exit_status;
    cli_line_clear(&line);
    free(settings);
    return exit_status;
}

/* A standard stream that is closed leaves its number to the next file that is opened: what the
 * program shows would end up in the run log. The stand-in is opened for the other direction, so
 * that using the stream still fails. */
static void fill_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static void ignore_signal(int number)
{
    (void)number;
}

/* A file that reaches the limit on its size (ulimit -f) is an error of its write, as on a full
 * disk, and no signal that ends the process. A handler, since programs that are started would
 * inherit that the signal is ignored. */
static void survive_file_limit(void)
{
    struct sigaction before;
    if (sigaction(SIGXFSZ, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
        (void)sigaction(SIGXFSZ,
                        &(struct sigaction){.sa_handler = ignore_signal, .sa_flags = SA_RESTART},
                        NULL);
}

/* Checkpoints have many files, jobs many processes. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    cli_launcher = sl_launch_link_open();
    fill_closed_streams();
    survive_file_limit();
    raise_descriptor_limit();
    if (argc < 2)
        cli_refuse("a command is needed: see sluice --help");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return print_help(argv[2], NULL);
    if (strcmp(argv[1], "help") == 0)
        return print_help(argv[2], argc > 3 ? argv[3] : NULL);
    if (strcmp(argv[1], "--version") == 0) {
        printf("sluice %s\n", sl_version());
        return cli_finish(SL_OK);
    }
    if (strcmp(argv[1], "launch-rank") == 0)
        return cmd_launch_rank(argv + 2);
    return run_command(find_command(argv[1]), argv + 2);
}

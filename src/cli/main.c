/* The program: finds the subcommand and hands it the rest of the line. */
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/supervisor.h"
#include "core/file.h"
#include "core/knobs.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const commands[] = {&cmd_train,      &cmd_eval,     &cmd_generate,
                                              &cmd_model,      &cmd_schedule, &cmd_data,
                                              &cmd_checkpoint, &cmd_launch,   NULL};

static void print_help(void)
{
    printf("Usage: sluice COMMAND [OPTION...]\n"
           "Trains Transformer language models on many devices at once.\n\n");
    for (int i = 0; commands[i]; i++)
        printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    printf("\n`sluice COMMAND --help` shows a command's options. The exit status is 0, 1 after an\n"
           "error, or 2 for a command line that makes no sense.\n\nEnvironment variables:\n");
    sli_knobs_print_help(stdout);
}

/* Ends the program where there is none of that name. */
static const cli_command *find_command(const char *name)
{
    cli_near near = {.word = name};
    for (int i = 0; commands[i]; i++) {
        if (strcmp(name, commands[i]->name) == 0)
            return commands[i];
        cli_near_consider(&near, commands[i]->name);
    }
    cli_refuse_near("there is no such command (see sluice --help)", name, &near, "");
}

/* sluice help [COMMAND]; and what documentation is built from. */
static int help(const char *what, const char *command)
{
    if (!what)
        print_help();
    else if (strcmp(what, "--markdown") == 0)
        cli_print_markdown(commands);
    else if (strcmp(what, "--man") == 0)
        cli_print_man(commands, command ? find_command(command) : NULL);
    else if (strcmp(what, "--completion") == 0)
        cli_print_completion(commands);
    else
        cli_print_help(find_command(what), stdout);
    return cli_finish(SL_OK);
}

static int run_command(const cli_command *chosen, int argc, char **argv)
{
    char name[32]; /* of the program, in messages and in lines that are printed */
    cli_command_line line;
    snprintf(name, sizeof name, "sluice %s", chosen->name);
    argv[0] = name;
    cli_read(chosen, argc, argv, &line);
    int status = chosen->run(&line);
    cli_command_line_clear(&line);
    return status;
}

/* A standard stream that is closed leaves its number to the next file that is opened: what the
 * program shows would end up in the run log. The stand-in is opened for the other direction, so
 * that using the stream still fails. */
static void hold_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1)
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

static void do_nothing(int number)
{
    (void)number;
}

/* A file that reaches the limit on its size (ulimit -f) is an error of its write, as on a full
 * disk, and no signal that ends the process. A handler, since programs that are started would
 * inherit that the signal is ignored. */
static void leave_file_limit(void)
{
    struct sigaction before;
    if (sigaction(SIGXFSZ, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
        (void)sigaction(SIGXFSZ,
                        &(struct sigaction){.sa_handler = do_nothing, .sa_flags = SA_RESTART},
                        NULL);
}

int main(int argc, char **argv)
{
    cli_supervisor_find();
    hold_closed_streams();
    leave_file_limit();
    (void)sli_raise_descriptor_limit(); /* checkpoints of many files, jobs of many processes */
    if (argc < 2)
        cli_refuse("a command is needed: see sluice --help", NULL);
    if (strcmp(argv[1], "--help") == 0)
        return help(NULL, NULL);
    if (strcmp(argv[1], "help") == 0)
        return help(argv[2], argc > 3 ? argv[3] : NULL);
    if (strcmp(argv[1], "--version") == 0) {
        printf("sluice %s\n", SLUICE_VERSION);
        return cli_finish(SL_OK);
    }
    if (strcmp(argv[1], "launch-rank") == 0)
        return cmd_launch_rank(argc - 1, argv + 1);
    return run_command(find_command(argv[1]), argc - 1, argv + 1);
}

/* The program: finds the subcommand and hands it the rest of the line. */
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/supervisor.h"
#include "core/knobs.h"
#include "core/limits.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what; /* NULL: not for users */
} command;

static const command commands[] = {
    {"train", cmd_train, "train a model, validate and test it"},
    {"eval", cmd_eval, "the loss and perplexity of saved weights"},
    {"generate", cmd_generate, "text from saved weights"},
    {"model", cmd_model, "a model's layers, partition and memory"},
    {"schedule", cmd_schedule, "draw a pipeline schedule"},
    {"data", cmd_data, "what a directory of text is made of; a synthetic corpus"},
    {"checkpoint", cmd_checkpoint, "show, verify, convert and average checkpoints"},
    {"launch", cmd_launch, "start a program on many processes, here or on several machines"},
    {"launch-rank", cmd_launch_rank, NULL},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(void)
{
    printf("Usage: sluice COMMAND [OPTION...]\n"
           "Trains Transformer language models on many devices at once.\n\n");
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].what)
            printf("  %-10s %s\n", commands[i].name, commands[i].what);
    printf("\n`sluice COMMAND --help` shows a command's options. The exit status is 0, 1 after an\n"
           "error, or 2 for a command line that makes no sense.\n\nEnvironment variables:\n");
    sli_knobs_print_help(stdout);
}

static int run_command(const command *chosen, int argc, char **argv)
{
    /* argp calls the program by argv[0] in its messages. */
    char name[32];
    snprintf(name, sizeof name, "sluice %s", chosen->name);
    argv[0] = name;
    return chosen->run(argc, argv);
}

/* A standard stream that is closed leaves its number to the next file that is opened: what the
 * program shows would end up in the run log. Opened the wrong way round, it fails as before. */
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
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0) {
        print_help();
        return cli_finish(SL_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("sluice %s\n", SLUICE_VERSION);
        return cli_finish(SL_OK);
    }
    cli_near near = {.word = argv[1]};
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0)
            return run_command(&commands[i], argc - 1, argv + 1);
        if (commands[i].what)
            cli_near_consider(&near, commands[i].name);
    }
    cli_refuse_near("there is no such command (see sluice --help)", argv[1], &near, "");
}

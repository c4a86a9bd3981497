/* sluice launch: a program as many processes, through MPI's mpirun. */
#define _GNU_SOURCE /* asprintf */
#include "cli/command.h"
#include "cli/output.h"
#include "launch/job.h"
#include "launch/kinds.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PROCESSES = 4096, MAX_RESTARTS = 1000000, MAX_SECONDS = 1000000 };
enum { DEFAULT_GRACE_SECONDS = 10, DEFAULT_SAVE_SECONDS = 600, COUNT_BYTES = 16 };

/* torchrun's names, and one of our own; programs may read them to know that they were started
 * again. */
static const char restart_count[] = "TORCHELASTIC_RESTART_COUNT";
static const char max_restarts[] = "TORCHELASTIC_MAX_RESTARTS";
static const char first_world_size[] = "SLUICE_FIRST_WORLD_SIZE";

/* A command line, written word by word. The words are borrowed. */
typedef struct words {
    char **list; /* [room], malloc'ed */
    size_t count, room;
    bool failed; /* there was no memory for one */
} words;

typedef struct settings {
    int processes, restarts;
    int least, most; /* processes of an elastic job; 0: their number stays */
    cli_job_limits limits;
    const char *hosts, *agent;
    const char *last_export; /* the others are on the command line */
} settings;

/* ---- Words -------------------------------------------------------------------------------- */

static void add(words *to, const char *word)
{
    if (to->count == to->room) {
        size_t room = to->room ? 2 * to->room : 64;
        char **list = realloc(to->list, room * sizeof *list);
        if (!list) {
            to->failed = true;
            return;
        }
        to->list = list;
        to->room = room;
    }
    to->list[to->count++] = (char *)word; /* exec's argument is not const, but left alone */
}

static void add_pair(words *to, const char *option, const char *value)
{
    add(to, option);
    add(to, value);
}

/* ---- Options ------------------------------------------------------------------------------ */

static sl_status parse_export(const char *text, void *object)
{
    if (!*text || *text == '=')
        return sl_error(SL_ERR_INVALID, "export must be NAME or NAME=VALUE, got \"%s\"", text);
    ((settings *)object)->last_export = text;
    return SL_OK;
}

static char *print_export(const void *object)
{
    const char *text = ((const settings *)object)->last_export;
    return text ? strdup(text) : NULL;
}

static sl_status parse_elastic(const char *text, void *object)
{
    settings *to = object;
    char least[COUNT_BYTES];
    size_t length = strcspn(text, ":");
    const sl_option number = {.name = "",
                              .type = SL_OPTION_INT,
                              .lowest = 1,
                              .highest = MAX_PROCESSES};
    snprintf(least, sizeof least, "%.*s", length < sizeof least ? (int)length : 0, text);
    if (text[length] == ':' && sl_option_set(&number, &to->least, least) == SL_OK &&
        sl_option_set(&number, &to->most, text + length + 1) == SL_OK && to->least <= to->most)
        return SL_OK;
    return sl_error(SL_ERR_INVALID,
                    "elastic must be MIN:MAX, two numbers of processes from 1 to %d, got \"%s\"",
                    MAX_PROCESSES, text);
}

static char *print_elastic(const void *object)
{
    const settings *from = object;
    char *text;
    return from->most == 0 || asprintf(&text, "%d:%d", from->least, from->most) < 0 ? NULL : text;
}

/* clang-format off */
static const sl_option options[] = {
    {.name = "nproc", .letter = 'n', .value = "N", .type = SL_OPTION_INT,
     .offset = offsetof(settings, processes), .lowest = 1, .highest = MAX_PROCESSES,
     .optional = true,
     .help = "Processes to start"},
    {.name = "hosts", .value = "FILE", .type = SL_OPTION_TEXT, .offset = offsetof(settings, hosts),
     .help = "Hosts to start on, one a line, with \" slots=N\" for the processes on it; without "
             "it, this machine"},
    {.name = "max-restarts", .value = "K", .type = SL_OPTION_INT,
     .offset = offsetof(settings, restarts), .highest = MAX_RESTARTS,
     .help = "Start a job that fails again, up to K times"},
    {.name = "elastic", .value = "MIN:MAX", .type = SL_OPTION_CUSTOM, .parse = parse_elastic,
     .print = print_elastic, .needs = "max-restarts",
     .help = "Start a failed job again with one process less for each one killed or lost, but at "
             "least MIN; the first attempt has -n processes, or MAX"},
    {.name = "grace", .value = "SECONDS", .type = SL_OPTION_DOUBLE,
     .offset = offsetof(settings, limits.grace_seconds), .highest = MAX_SECONDS,
     .help = "Seconds that the other processes get to end by themselves after a failure or a signal"},
    {.name = "grace-save", .value = "SECONDS", .type = SL_OPTION_DOUBLE,
     .offset = offsetof(settings, limits.save_seconds), .highest = MAX_SECONDS,
     .help = "While a process saves a checkpoint, --grace starts again, for at most SECONDS"},
    {.name = "export", .letter = 'x', .value = "NAME[=VALUE]", .type = SL_OPTION_CUSTOM,
     .parse = parse_export, .print = print_export,
     .help = "Pass this environment variable to processes on other hosts; may be repeated"},
    {.name = "launch-agent", .value = "COMMAND", .type = SL_OPTION_TEXT,
     .offset = offsetof(settings, agent),
     .help = "What starts a command on a host, called with the host and the command, instead of "
             "ssh"},
    {0},
};
/* clang-format on */

static void set_defaults(void *to)
{
    *(settings *)to = (settings){.limits = {DEFAULT_GRACE_SECONDS, DEFAULT_SAVE_SECONDS}};
}

static void check_hosts(const char *path)
{
    struct stat what = {0};
    int error = access(path, R_OK) != 0 || stat(path, &what) != 0 ? errno : 0;
    if (error == 0 && S_ISDIR(what.st_mode))
        error = EISDIR;
    if (error != 0)
        cli_refuse("--hosts must name a file (%s), got \"%s\"", strerror(error), path);
}

static void check(settings *parsed, const cli_line *line)
{
    if (parsed->processes == 0)
        parsed->processes = parsed->most;
    if (line->word_count == 0)
        cli_refuse("launch needs a program to start");
    for (char **word = line->words; *word; word++)
        if (strcmp(*word, ":") == 0)
            cli_refuse("mpirun cannot pass on an argument that is a single colon");
    if (parsed->processes == 0)
        cli_refuse("launch needs -n N, the number of processes");
    if (parsed->most > 0 && (parsed->processes < parsed->least || parsed->processes > parsed->most))
        cli_refuse("-n must be within --elastic MIN:MAX");
    if (parsed->hosts)
        check_hosts(parsed->hosts);
}

/* ---- mpirun ------------------------------------------------------------------------------- */

/* Another MPI's mpirun takes other options. */
static sl_status check_mpirun(void)
{
    char line[256] = "";
    FILE *from = popen("mpirun --version 2>&1", "r"); /* NOLINT(cert-env33-c): a constant */
    if (from && !fgets(line, sizeof line, from))
        line[0] = '\0';
    int status = from ? pclose(from) : -1;
    line[strcspn(line, "\n")] = '\0';
    if (status == 0 && strstr(line, "Open MPI"))
        return SL_OK;
    if (status == 0)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "launch: mpirun must be Open MPI's, and this one says \"%s\"", line);
    return sl_error(SL_ERR_NOT_FOUND, "launch: there is no mpirun on PATH that runs: install Open "
                                      "MPI (Debian: openmpi-bin)");
}

/* Lost hosts are noticed within some 10 s, where Open MPI would take minutes. */
static void add_host_options(words *to, const settings *parsed)
{
    static const char *const limits[][2] = {{"oob_tcp_keepalive_time", "3"},
                                            {"oob_tcp_keepalive_intvl", "1"},
                                            {"oob_tcp_keepalive_probes", "5"}};
    add_pair(to, "--hostfile", parsed->hosts);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        add(to, "--mca");
        add_pair(to, limits[i][0], limits[i][1]);
    }
}

/* Ranks bind their devices' threads to cores themselves. */
static void write_command(words *to, const cli_line *line, const settings *parsed, const char *self,
                          const char *count)
{
    add_pair(to, "mpirun", "--quiet");
    add_pair(to, "--bind-to", "none");
    add_pair(to, "-n", count);
    if (geteuid() == 0)
        add(to, "--allow-run-as-root");
    if (parsed->hosts)
        add_host_options(to, parsed);
    if (parsed->hosts || parsed->processes > sysconf(_SC_NPROCESSORS_ONLN))
        add(to, "--oversubscribe");
    if (parsed->agent) {
        add(to, "--mca");
        add_pair(to, "plm_rsh_agent", parsed->agent);
    }
    add_pair(to, "-x", CLI_LAUNCHER_VARIABLE);
    add_pair(to, "-x", restart_count);
    add_pair(to, "-x", max_restarts);
    add_pair(to, "-x", first_world_size);
    for (int i = 0; i < line->given_count; i++)
        if (line->given[i].option->letter == 'x')
            add_pair(to, "-x", line->given[i].text);
    add_pair(to, self, "launch-rank");
    for (char **word = line->words; *word; word++)
        add(to, *word);
    add(to, NULL);
}

/* ---- Attempts ----------------------------------------------------------------------------- */

static void export_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

/* Of the attempt after one of `processes`. */
static int next_processes(const settings *parsed, int processes, const cli_job_end *end)
{
    if (parsed->most == 0)
        return processes;
    return processes - end->died > parsed->least ? processes - end->died : parsed->least;
}

/* `next`: the processes of the attempt that follows; 0: none does. */
static void report(const cli_job_end *end, const settings *parsed, int attempt, int next)
{
    if (parsed->restarts > 0)
        fprintf(stderr, "sluice: attempt %d of %d: %s", attempt, parsed->restarts + 1, end->why);
    else
        fprintf(stderr, "sluice: %s", end->why);
    if (next > 0)
        fprintf(stderr, "; starting again");
    if (next > 0 && parsed->most > 0)
        fprintf(stderr, " with %d process%s", next, next == 1 ? "" : "es");
    fprintf(stderr, "\n");
}

/* Without a list of hosts mpirun starts all processes here, but in an allocation of a resource
 * manager, which it reads itself. */
static bool is_on_this_host(const settings *parsed)
{
    static const char *const allocations[] = {"SLURM_JOB_ID", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE",
                                              "PE_HOSTFILE"};
    bool allocated = false;
    for (size_t i = 0; i < sizeof allocations / sizeof *allocations; i++)
        allocated |= getenv(allocations[i]) != NULL;
    return !parsed->hosts && !allocated;
}

/* `count` is the word of the command that says how many processes there are. */
static sl_status run_attempts(char **command, char count[COUNT_BYTES], const settings *parsed,
                              int *result)
{
    int processes = parsed->processes;
    bool again = true;
    export_number(max_restarts, parsed->restarts);
    export_number(first_world_size, processes);
    for (int attempt = 1; again; attempt++) {
        cli_job_end end;
        export_number(restart_count, attempt - 1);
        snprintf(count, COUNT_BYTES, "%d", processes);
        SL_TRY(cli_job_run(command, processes, is_on_this_host(parsed), &parsed->limits, &end));
        again = end.status != 0 && !end.final && attempt <= parsed->restarts;
        processes = next_processes(parsed, processes, &end);
        if (end.status != 0)
            report(&end, parsed, attempt, again ? processes : 0);
        *result = end.status;
    }
    return SL_OK;
}

static sl_status launch(const cli_line *line, const settings *parsed, int *result)
{
    char self[PATH_MAX], count[COUNT_BYTES];
    words command = {0};
    SL_TRY(check_mpirun());
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        return sl_error(SL_ERR_IO, "launch: /proc/self/exe: %s", strerror(errno));
    self[length] = '\0';
    write_command(&command, line, parsed, self, count);
    sl_status status = command.failed
                           ? sl_error(SL_ERR_MEMORY, "launch: no memory for mpirun's command line")
                           : run_attempts(command.list, count, parsed, result);
    free(command.list);
    return status;
}

static int run(cli_line *line)
{
    settings parsed;
    int result = 0;
    cli_settings_read(line, &parsed);
    check(&parsed, line);
    sl_status status = launch(line, &parsed, &result);
    return status == SL_OK ? result : cli_finish(status);
}

const cli_command cmd_launch = {
    .name = "launch",
    .summary = "start a program on many processes, here or on several machines",
    .arguments = "PROGRAM [ARGUMENT...]",
    .doc = "Starts PROGRAM as N processes through Open MPI's mpirun, each with its RANK, "
           "LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE in the environment. When one fails, the "
           "others may end by themselves, are then ended, and the first failure is reported; the "
           "exit status is that process's, or 128 and the signal's number.",
    .options = options,
    .program = true,
    .settings_bytes = sizeof(settings),
    .set_defaults = set_defaults,
    .run = run,
};

/* Jobs of shell scripts, which `sluice launch` starts as a user would. */
#ifndef TESTS_LAUNCH_SHELL_JOB_H
#define TESTS_LAUNCH_SHELL_JOB_H

#include "io/scratch.h"
#include "support/program.h"

#include <stdio.h>

/* Every rank leaves its process number in a file; what it is to do follows. */
static const char head[] = "cd \"$(dirname \"$0\")\" || exit 99\n"
                           "echo $$ >pid.$RANK.$TORCHELASTIC_RESTART_COUNT\n"
                           "all() { while [ $(ls $1.* | wc -l) != $WORLD_SIZE ]; do sleep 0.01; "
                           "done; }\n"
                           "see_end() {\n"
                           "    until [ -s pid.$1.0 ]; do sleep 0.01; done\n"
                           "    while [ -d /proc/$(cat pid.$1.0) ]; do sleep 0.01; done\n"
                           "    sleep 0.5\n"
                           "}\n";

/* The shell's supervisor, its guard, mpirun, and the process that called mpirun. */
static const char find_launcher[] =
    "parent() { read -r _ _ _ p _ </proc/$1/stat; echo $p; }\n"
    "supervisor=$PPID; guard=$(parent $supervisor); mpirun=$guard\n"
    "until [ \"$(cat /proc/$mpirun/comm)\" = mpirun ]; do mpirun=$(parent $mpirun); done\n"
    "launcher=$(parent $mpirun)\n";

static inline void write_script(scratch *dir, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline void write_script(scratch *dir, const char *format, ...)
{
    FILE *file = fopen(scratch_path(dir, "job.sh"), "w");
    va_list values;
    assert_non_null(file);
    fputs(head, file);
    va_start(values, format);
    vfprintf(file, format, values);
    va_end(values);
    assert_int_equal(fclose(file), 0);
}

/* Runs `sluice launch OPTIONS sh job.sh`. */
static inline void launch(program_run *run, scratch *dir, const char *options)
{
    program_start(run, "launch %s sh %s/job.sh", options, dir->directory);
}

/* How many processes left their numbers; *running is one of them that still runs, or 0. */
static inline int count_processes(scratch *dir, int *running)
{
    int found = 0;
    DIR *open = opendir(dir->directory);
    assert_non_null(open);
    *running = 0;
    for (struct dirent *entry; (entry = readdir(open));) {
        char text[32] = "";
        if (strncmp(entry->d_name, "pid.", 4) != 0)
            continue;
        found++;
        read_file(scratch_path(dir, entry->d_name), text, sizeof text - 1);
        if (process_runs(atoi(text)))
            *running = atoi(text);
    }
    closedir(open);
    return found;
}

/* Fails the test unless `count` processes left their numbers and all of them have ended. */
static inline void check_all_ended(scratch *dir, int count)
{
    int running;
    assert_int_equal(count_processes(dir, &running), count);
    if (running)
        fail_msg("process %d still runs", running);
}

#endif

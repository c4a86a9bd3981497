/* How long sluice plan searches for a large cluster, in one thread, and in how much memory.
 *
 *   bench_plan examples/clusters/1250_nodes.json
 *
 * plans llama-3-8b for 1,024 of the file's nodes, and a model of 1,000 such layers for all of them,
 * each in a process of its own. */
#define _GNU_SOURCE /* mkstemp */
#include "support.h"

#include "sluice/app/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 16 };

typedef struct plan_case {
    const char *name;
    int layers, nodes, devices;
} plan_case;

static const plan_case cases[] = {{"llama-3-8b", 32, 1024, 8192},
                                  {"1,000 layers of llama-3-8b", 1000, 1250, 10000}};
static const int64_t batch_tokens = 1 << 24;

static double user_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + 1e-6 * (double)usage.ru_utime.tv_usec;
}

static void fail(const char *text)
{
    fprintf(stderr, "bench_plan: %s\n", text);
    exit(1);
}

/* The cluster file with another number of nodes, in a file of its own. */
static void write_cluster(const char *path, int nodes, char *copy)
{
    static const char count[] = "\"count\": 1250";
    char text[MOST_BYTES];
    FILE *file = fopen(path, "r");
    size_t bytes = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[bytes] = '\0';
    char *place = strstr(text, count);
    if (!file || !place)
        fail("expected the cluster file of 1,250 nodes");
    fclose(file);
    int handle = mkstemp(copy);
    if (handle < 0)
        fail("no temporary file");
    dprintf(handle, "%.*s\"count\": %d%s", (int)(place - text), text, nodes,
            place + sizeof count - 1);
    close(handle);
}

static void plan(const char *path, const plan_case *planned)
{
    sl_train_options run;
    sl_cluster_plans found;
    struct rusage usage;
    char copy[] = "/tmp/bench_plan.XXXXXX";
    write_cluster(path, planned->nodes, copy);
    sl_train_options_default(&run);
    bench_check(sl_model_options_named("llama-3-8b", &run.model));
    run.model.nlayers = planned->layers;
    run.bptt = run.model.context;
    run.precision = SL_PRECISION_BF16;
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    const sl_plan_search_options options = {.run = &run, .batch_tokens = batch_tokens};
    double start = user_seconds();
    bench_check(sl_plan_search_cluster(&options, copy, &found));
    double seconds = user_seconds() - start;
    getrusage(RUSAGE_SELF, &usage);
    remove(copy);
    printf("| %s | %d | %lld | %lld | %lld | %.1f s | %.2f GB |\n", planned->name, planned->devices,
           (long long)found.layouts, (long long)found.simulated, (long long)found.too_large,
           seconds, (double)usage.ru_maxrss * 1024 / 1e9);
    sl_cluster_plans_clear(&found);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        fail("expected a cluster file");
    bench_heading(
        "| model | devices | layouts | simulated | left out | processor time | at most |");
    printf("runs: one of each search\n");
    fflush(stdout);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status = 1;
        pid_t child = fork();
        if (child == 0) {
            plan(argv[1], &cases[i]);
            return 0;
        }
        if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0)
            fail("a search did not end");
    }
    return 0;
}

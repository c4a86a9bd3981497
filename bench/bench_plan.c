/* How long sluice plan searches for a large cluster, in one thread, and in how much memory.
 *
 *   bench_plan CLUSTER [MODEL [BATCH_TOKENS [LAYERS]]]
 *
 * CLUSTER is a file; the model is llama-3-8b, of LAYERS layers where they are given. */
#include "support.h"

#include "sluice/app/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    sl_train_options run;
    sl_cluster_plans found;
    struct rusage usage;
    const char *model = argc > 2 ? argv[2] : "llama-3-8b";
    int64_t tokens = argc > 3 ? strtoll(argv[3], NULL, 10) : 1 << 24;
    sl_train_options_default(&run);
    bench_check(sl_model_options_named(model, &run.model));
    run.model.nlayers = argc > 4 ? (int)strtol(argv[4], NULL, 10) : run.model.nlayers;
    run.bptt = run.model.context;
    run.precision = SL_PRECISION_BF16;
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    const sl_plan_search_options options = {.run = &run, .batch_tokens = tokens};
    double start = processor_seconds();
    bench_check(sl_plan_search_cluster(&options, argc > 1 ? argv[1] : "", &found));
    double seconds = processor_seconds() - start;
    getrusage(RUSAGE_SELF, &usage);
    bench_heading("| cluster | model | layers | tokens a step | layouts | simulated | left out | "
                  "processor time | at most |");
    printf("| %s | %s | %d | %lld | %lld | %lld | %lld | %.1f s | %.2f GB |\n",
           argc > 1 ? argv[1] : "", model, (int)run.model.nlayers, (long long)tokens,
           (long long)found.layouts, (long long)found.simulated, (long long)found.too_large,
           seconds, (double)usage.ru_maxrss * 1024 / 1e9);
    sl_cluster_plans_clear(&found);
    return 0;
}

/* Steps the tutorials' language model under given settings and prints one JSON line. For scripts
 * that compare; bench_step and bench_pipeline are the ones to read figures from.
 *
 *   bench_lm --emsize 1024 --nlayers 4 --nhead 16 --devices cpu:0,cpu:1 --stages 2 --chunks 4
 *            --checkpoint never --schedule gpipe --batch 20 --bptt 35 --steps 10 */
#include "support.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 1000 };

static long positive(const char *name, const char *text)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || value < 1)
        bench_check(
            sl_error(SL_ERR_INVALID, "--%s must be a number from 1, got \"%s\"", name, text));
    return value;
}

static void parse(int argc, char **argv, bench_setup *setup, long *steps)
{
    static const struct option options[] = {
        {"emsize", 1, NULL, 'e'},   {"nhid", 1, NULL, 'f'},    {"nlayers", 1, NULL, 'l'},
        {"nhead", 1, NULL, 'h'},    {"ntokens", 1, NULL, 'v'}, {"devices", 1, NULL, 'd'},
        {"stages", 1, NULL, 's'},   {"chunks", 1, NULL, 'c'},  {"checkpoint", 1, NULL, 'k'},
        {"schedule", 1, NULL, 'S'}, {"batch", 1, NULL, 'b'},   {"bptt", 1, NULL, 't'},
        {"steps", 1, NULL, 'n'},    {NULL, 0, NULL, 0},
    };
    int option, index = 0;
    while ((option = getopt_long(argc, argv, "", options, &index)) != -1) {
        if (option == '?')
            exit(2);
        if (option == 'd')
            setup->devices = optarg;
        else if (option == 'k')
            bench_check(sl_recompute_parse(optarg, &setup->recompute));
        else if (option == 'S')
            bench_check(sl_schedule_kind_parse(optarg, &setup->schedule));
        else {
            long value = positive(options[index].name, optarg);
            int64_t *wide = option == 'e'   ? &setup->model.emsize
                            : option == 'f' ? &setup->model.nhid
                            : option == 'l' ? &setup->model.nlayers
                            : option == 'h' ? &setup->model.nhead
                            : option == 'v' ? &setup->model.ntokens
                            : option == 'b' ? &setup->batch
                            : option == 't' ? &setup->bptt
                                            : NULL;
            if (wide)
                *wide = value;
            else if (option == 's')
                setup->stages = (int)value;
            else if (option == 'c')
                setup->chunks = (int)value;
            else
                *steps = value;
        }
    }
}

int main(int argc, char **argv)
{
    bench_setup setup = bench_setup_lm(200, 2, 2);
    long steps = 10;
    setup.model.nhid = 0;
    parse(argc, argv, &setup, &steps);
    if (setup.model.nhid == 0)
        setup.model.nhid = setup.model.emsize;
    if (steps > MAX_STEPS)
        bench_check(sl_error(SL_ERR_INVALID, "--steps must be at most %d", MAX_STEPS));
    bench_trainer *trainer = bench_trainer_create(&setup);
    double seconds[MAX_STEPS];
    bench_trainer_step(trainer);
    for (long i = 0; i < steps; i++)
        seconds[i] = bench_trainer_step(trainer);
    double median = bench_median(seconds, (int)steps);
    printf("{\"bench\":\"lm\",\"program\":\"sluice\",\"emsize\":%d,\"nlayers\":%d,\"stages\":%d,"
           "\"chunks\":%d,\"checkpoint\":\"%s\",\"schedule\":\"%s\",\"ms\":%.2f,"
           "\"tokens_per_s\":%.1f}\n",
           (int)setup.model.emsize, (int)setup.model.nlayers, setup.stages, setup.chunks,
           sl_recompute_name(setup.recompute), sl_schedule_kind_name(setup.schedule), 1e3 * median,
           (double)(setup.batch * setup.bptt) / median);
    bench_trainer_destroy(trainer);
    return 0;
}

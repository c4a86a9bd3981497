/* A small synthetic corpus in a scratch directory, and a model small enough for it. */
#ifndef TESTS_CLI_CORPUS_H
#define TESTS_CLI_CORPUS_H

#include "io/scratch.h"
#include "support/program.h"

enum { CORPUS_FILES = 4 };

#define TINY_MODEL "--emsize 16 --nhid 16 --nhead 2 --nlayers 2"
#define TINY_BATCH "--bptt 8 --eval-batch-size 8"

/* cmocka's set-up: `*state` is a scratch with a corpus of 4,000 tokens. */
static inline int corpus_create(void **state)
{
    program_run made;
    scratch_create(state);
    scratch *in = *state;
    program_succeed(&made, "data --synthetic %s --tokens 4000", in->directory);
    assert_int_equal(scratch_entries(in, 0), CORPUS_FILES);
    return 0;
}

/* The same with a model trained on it for a few batches: model.safetensors, model.vocab.txt. What
 * the training printed is in `trained`. */
static inline int corpus_create_trained(void **state, program_run *trained)
{
    corpus_create(state);
    scratch *in = *state;
    program_succeed(trained,
                    "train --data %s " TINY_MODEL " " TINY_BATCH
                    " --batch-size 8 --epochs 2 --max-batches 20 --save %s/model.safetensors",
                    in->directory, in->directory);
    return 0;
}

#endif

/* A small language model in a pipe, for tests of what is done with models. */
#ifndef TESTS_TRAIN_SMALL_MODEL_H
#define TESTS_TRAIN_SMALL_MODEL_H

#include "sluice/train.h"
#include "support/check.h"
#include "support/pipes.h"

#include <stdlib.h>
#include <string.h>

enum { SMALL_TOKENS = 11 };

static const sl_model_options small_model_options = {
    .ntokens = SMALL_TOKENS,
    .emsize = 8,
    .nhid = 12,
    .nlayers = 3,
    .nhead = 2,
    .dropout = 0.2f,
};

/* On `stages` devices of one thread, with micro-batches of a third of a batch. */
static inline test_pipe open_small_model(int stages, uint64_t seed)
{
    sl_module *model;
    sl_loss *loss;
    check_ok(sl_transformer_lm_create(&small_model_options, &model));
    check_ok(sl_cross_entropy_create(&loss));
    return open_pipe(model, loss, (sl_pipe_options){.stages = stages, .chunks = 3, .seed = seed},
                     stages, 1);
}

/* The trained parameter of that name. */
static inline sl_parameter *find_parameter(const test_pipe *pipe, const char *name)
{
    for (int s = 0; s < sl_pipe_stages(pipe->pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe->pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++)
            if (strcmp(sl_parameter_name(sl_parameter_set_get(set, i)), name) == 0)
                return sl_parameter_set_get(set, i);
    }
    fail_msg("there is no parameter %s", name);
    return NULL;
}

/* Random ids, the same every time. */
static inline sl_tokens small_tokens(int64_t count)
{
    sl_tokens made = {malloc((size_t)count * sizeof *made.ids), count, 1};
    assert_non_null(made.ids);
    uint32_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        made.ids[i] = (int32_t)(state >> 8) % SMALL_TOKENS;
    }
    return made;
}

#endif

/* How far a run has come. */
#ifndef SLI_TRAIN_CHECKPOINT_POSITION_H
#define SLI_TRAIN_CHECKPOINT_POSITION_H

#include <stdint.h>

typedef struct sli_position {
    int64_t steps;     /* done */
    int64_t epoch;     /* that is under way, from 0; as many as there are: only the test is left */
    int64_t block;     /* the next one of it; as many as there are: validation comes next */
    int64_t best_step; /* after which the best validation was */
    double best_loss;  /* infinite: none yet */
} sli_position;

#endif

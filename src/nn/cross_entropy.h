/* What plans ask of cross entropy. */
#ifndef SLI_NN_CROSS_ENTROPY_H
#define SLI_NN_CROSS_ENTROPY_H

#include <stdint.h>

/* Bytes of workspace of the loss of `rows` rows that takes over a linear layer to `classes`. */
int64_t sli_cross_entropy_room(int64_t rows, int64_t classes);

#endif

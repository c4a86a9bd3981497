/* The vocabulary that lies beside a weights file. The two are one thing in two files: the weights'
 * metadata have the vocabulary's checksum, and only the vocabulary with that checksum is theirs.
 *
 * Two files cannot be replaced in one step. So a save writes the new vocabulary beside the old one,
 *
 *     m.safetensors  m.vocab.txt                       an older pair
 *     m.safetensors  m.vocab.txt  m.vocab.txt.new      sli_weights_vocab_begin
 *     M.safetensors  m.vocab.txt  m.vocab.txt.new      the weights are replaced
 *     M.safetensors  M.vocab.txt                       sli_weights_vocab_end
 *
 * and at each of these moments the weights have their vocabulary beside them, under one name or the
 * other, where sl_weights_vocab finds it. */
#ifndef SLI_TRAIN_CHECKPOINT_WEIGHTS_VOCAB_H
#define SLI_TRAIN_CHECKPOINT_WEIGHTS_VOCAB_H

#include "sluice/train.h"

/* Before weights are saved at `path` with this vocabulary: brings it to disk, and takes none away
 * that weights need which are there. Does little where the older vocabulary is the same. */
sl_status sli_weights_vocab_begin(const char *path, const sl_vocab *vocab);

/* After: gives it its name. */
sl_status sli_weights_vocab_end(const char *path);

/* Refuses a vocabulary that is not the one that the weights at `path`, a file, index or directory,
 * say they were saved with. */
sl_status sli_weights_vocab_check(const char *path, const sl_vocab *vocab);

#endif

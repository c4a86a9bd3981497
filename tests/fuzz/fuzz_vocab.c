/* Any bytes as a vocabulary's file: loading must end in one sentence, or in a vocabulary that has
 * each line's token at its number and finds it again. */
#define _GNU_SOURCE /* memfd_create */

#include "sluice/app/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void demand(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "fuzz_vocab: not %s; the last error: %s\n", what, sl_error_text());
    abort();
}

/* The tokens, a line each, are the file's bytes, but for a last line end that it may lack. */
static void check_vocab(const sl_vocab *vocab, const uint8_t *data, size_t bytes)
{
    size_t at = 0;
    demand(sl_vocab_size(vocab) >= 1, "with <unk>");
    for (int32_t id = 0; id < sl_vocab_size(vocab); id++) {
        sl_token token = sl_vocab_token(vocab, id);
        demand(token.bytes <= bytes - at && memcmp(token.text, data + at, token.bytes) == 0,
               "the token of its line");
        demand(sl_vocab_id(vocab, token.text, token.bytes) == id, "found by its text");
        at += token.bytes;
        demand(at == bytes ? id == sl_vocab_size(vocab) - 1 : data[at] == '\n', "a line's end");
        at += at < bytes;
    }
    demand(at == bytes, "the whole file");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char path[32];
    sl_vocab *vocab;
    int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
    demand(descriptor >= 0 && write(descriptor, data, bytes) == (ssize_t)bytes, "a file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    sl_status status = sl_vocab_load(path, &vocab);
    demand((status == SL_OK) == (vocab != NULL), "NULL after an error");
    demand(status == SL_OK || status == SL_ERR_FORMAT, "refused for its format");
    if (status == SL_OK)
        check_vocab(vocab, data, bytes);
    sl_vocab_destroy(&vocab);
    close(descriptor);
    return 0;
}

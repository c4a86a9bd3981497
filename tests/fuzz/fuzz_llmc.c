/* Any bytes as a model's file of llm.c: opening must end in a table of tensors that cover the file,
 * or in one sentence. A header whose sizes are small is also given a file of just their length,
 * since drawn lengths are never right. */
#define _GNU_SOURCE /* memfd_create */

#include "fuzz/fuzz.h"

#include "io/llmc/llmc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check_tensors(const sli_safetensors_reader *reader)
{
    uint64_t end = 0;
    for (size_t i = 0; i < sli_safetensors_count(reader); i++) {
        const sl_safetensors_info *info = sli_safetensors_get(reader, i);
        demand(sli_safetensors_find(reader, info->name) == info, "found by its name");
        void *memory = malloc(info->bytes);
        demand(memory && sli_safetensors_read(reader, info, memory) == SL_OK, "readable");
        free(memory);
        end += info->bytes;
    }
    demand(reader->data_begin + end == reader->file_bytes, "covered");
}

/* The length that the last error asked for; 0: it asked for none, or for much. */
static size_t asked_for(void)
{
    enum { MOST = 1 << 16 };
    const char *sentence = strstr(sl_error_text(), "sizes has ");
    unsigned long long bytes = sentence ? strtoull(sentence + strlen("sizes has "), NULL, 10) : 0;
    return bytes <= MOST ? (size_t)bytes : 0;
}

/* Returns the length that the file should have; 0: it is right, or its header is not. */
static size_t open_file(const uint8_t *data, size_t bytes, size_t length)
{
    char path[32];
    sli_safetensors_reader *reader;
    char *config;
    int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
    demand(descriptor >= 0 && write(descriptor, data, bytes) == (ssize_t)bytes &&
               ftruncate(descriptor, (off_t)length) == 0,
           "a file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    sl_status status = sli_llmc_open(path, &reader, &config);
    demand(status == SL_OK || status == SL_ERR_FORMAT, "accepted or refused for its format");
    size_t asked = status == SL_OK ? 0 : asked_for();
    if (status == SL_OK)
        check_tensors(reader);
    sli_safetensors_close(&reader);
    free(config);
    close(descriptor);
    return asked;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t asked = open_file(data, bytes, bytes);
    if (asked > 0)
        demand(open_file(data, bytes < asked ? bytes : asked, asked) == 0, "the length asked for");
    return 0;
}

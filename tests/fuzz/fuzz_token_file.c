/* Any bytes as a token file: it must end in one sentence, or in tokens that can be read. The first
 * byte says what a file without a header holds, the next two how many bytes of an .idx follow (0:
 * there is none); the rest is the .bin. */
#include "fuzz/fuzz.h"

#include "text/token_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void write_whole(const char *path, const uint8_t *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    demand(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0, "a file");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char bin[64], idx[64];
    sli_token_file file;
    if (bytes < 3)
        return 0;
    size_t head = (size_t)(data[1] | data[2] << 8);
    head = head < bytes - 3 ? head : bytes - 3;
    snprintf(bin, sizeof bin, "/dev/shm/sluice-fuzz-%d.bin", (int)getpid());
    snprintf(idx, sizeof idx, "/dev/shm/sluice-fuzz-%d.idx", (int)getpid());
    write_whole(bin, data + 3 + head, bytes - 3 - head);
    if (head > 0)
        write_whole(idx, data + 3, head);
    sl_status status = sli_token_file_open(bin, (sl_token_type)(data[0] % 3), &file);
    demand(status == SL_OK || status == SL_ERR_FORMAT || status == SL_ERR_INVALID, "refused");
    for (int64_t i = 0; status == SL_OK && i < file.count; i++) {
        int32_t id;
        sl_status read = sli_token_file_read(&file, i, 1, 1 << 30, &id);
        demand(read == SL_OK || read == SL_ERR_FORMAT, "read");
    }
    if (status == SL_OK)
        sli_token_file_clear(&file);
    unlink(bin);
    unlink(idx);
    return 0;
}

#define _GNU_SOURCE /* asprintf */

#include "train/last_step.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* So wide that every number takes the place of the one before it. */
enum { DIGITS = 20, TEXT_BYTES = DIGITS + 2 };

static int open_file(const char *directory, int flags)
{
    char *path;
    if (asprintf(&path, "%s/progress", directory) < 0)
        return -1;
    int descriptor = open(path, flags | O_CLOEXEC, 0666);
    free(path);
    return descriptor;
}

sli_last_step sli_last_step_open(const char *directory)
{
    int descriptor = open_file(directory, O_WRONLY | O_CREAT);
    return (sli_last_step){descriptor >= 0, descriptor};
}

void sli_last_step_close(sli_last_step *file)
{
    if (file->is_open)
        close(file->descriptor);
    file->is_open = false;
}

void sli_last_step_note(const sli_last_step *file, int64_t step)
{
    char text[TEXT_BYTES];
    if (!file->is_open)
        return;
    int length = snprintf(text, sizeof text, "%0*" PRId64 "\n", DIGITS, step);
    (void)!pwrite(file->descriptor, text, (size_t)length, 0);
}

int64_t sli_last_step_read(const char *directory)
{
    char text[TEXT_BYTES] = "";
    int descriptor = open_file(directory, O_RDONLY);
    if (descriptor < 0)
        return 0;
    ssize_t length = pread(descriptor, text, sizeof text - 1, 0);
    close(descriptor);
    char *end;
    long long step = length == TEXT_BYTES - 1 ? strtoll(text, &end, 10) : 0;
    return step > 0 && end == text + DIGITS ? step : 0;
}

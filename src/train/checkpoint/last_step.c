#define _GNU_SOURCE /* asprintf */

#include "train/checkpoint/save_directory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* So wide that every number takes the place of the one before it. */
enum { DIGITS = 20, TEXT_BYTES = DIGITS + 2 };

/* The number in the file; -1: it is something else. */
static int64_t read_step(int descriptor)
{
    char text[TEXT_BYTES] = "";
    ssize_t length = pread(descriptor, text, sizeof text, 0);
    char *end;
    long long step = length == TEXT_BYTES - 1 ? strtoll(text, &end, 10) : -1;
    return step > 0 && end == text + DIGITS ? step : -1;
}

static int open_file(const char *directory, int flags)
{
    char *path;
    if (asprintf(&path, "%s/progress", directory) < 0)
        return -1;
    int descriptor = open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    free(path);
    return descriptor;
}

sli_last_step sli_last_step_open(const char *directory)
{
    struct stat found;
    int descriptor = open_file(directory, O_RDWR | O_CREAT);
    bool own = descriptor >= 0 && fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) &&
               (found.st_size == 0 || read_step(descriptor) > 0);
    if (descriptor >= 0 && !own)
        close(descriptor);
    return (sli_last_step){own, own ? descriptor : -1};
}

void sli_last_step_close(sli_last_step *file)
{
    if (file->is_open)
        close(file->descriptor);
    file->is_open = false;
}

void sli_last_step_write(const sli_last_step *file, int64_t step)
{
    char text[TEXT_BYTES];
    if (!file->is_open)
        return;
    int length = snprintf(text, sizeof text, "%0*" PRId64 "\n", DIGITS, step);
    (void)!pwrite(file->descriptor, text, (size_t)length, 0);
}

int64_t sli_last_step_read(const char *directory)
{
    int descriptor = open_file(directory, O_RDONLY);
    if (descriptor < 0)
        return 0;
    int64_t step = read_step(descriptor);
    close(descriptor);
    return step > 0 ? step : 0;
}

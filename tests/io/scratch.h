/* A directory for a test's files, and the safetensors files that tests build byte by byte. */
#ifndef TESTS_IO_SCRATCH_H
#define TESTS_IO_SCRATCH_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct scratch {
    char directory[64];
    char path[512]; /* of what scratch_path was asked for last */
} scratch;

/* cmocka's set-up and tear-down: `*state` is a scratch. */
static inline int scratch_create(void **state)
{
    scratch *made = calloc(1, sizeof *made);
    assert_non_null(made);
    snprintf(made->directory, sizeof made->directory, "/tmp/sluice-io-XXXXXX");
    assert_non_null(mkdtemp(made->directory));
    *state = made;
    return 0;
}

static inline char *scratch_path(scratch *dir, const char *name)
{
    snprintf(dir->path, sizeof dir->path, "%s/%s", dir->directory, name);
    return dir->path;
}

/* Removes a file or directory in it, and what that holds. */
static inline void scratch_remove_tree(scratch *dir, const char *name)
{
    char line[700];
    snprintf(line, sizeof line, "rm -rf '%s/%s'", dir->directory, name);
    assert_int_equal(system(line), 0);
}

/* How many files and directories are in it; removes them where `remove_all`. */
static inline int scratch_entries(scratch *dir, int remove_all)
{
    int count = 0;
    DIR *open = opendir(dir->directory);
    assert_non_null(open);
    for (struct dirent *entry; (entry = readdir(open));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        count++;
        if (remove_all)
            scratch_remove_tree(dir, entry->d_name);
    }
    closedir(open);
    return count;
}

static inline int scratch_remove(void **state)
{
    scratch *dir = *state;
    scratch_entries(dir, 1);
    assert_int_equal(rmdir(dir->directory), 0);
    free(dir);
    return 0;
}

static inline void write_file(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static inline void scratch_write(scratch *dir, const char *name, const char *text)
{
    write_file(scratch_path(dir, name), text, strlen(text));
}

/* Reads up to `room` bytes; returns how many the file has. */
static inline size_t read_file(const char *path, void *bytes, size_t room)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(bytes, 1, room, file);
    fclose(file);
    return count;
}

/* A file of the header's length, the header, and `data_bytes` bytes 0, 1, 2, … */
static inline void write_safetensors(const char *path, const char *header, size_t header_bytes,
                                     size_t data_bytes)
{
    uint64_t length = header_bytes;
    unsigned char *file = calloc(1, sizeof length + header_bytes + data_bytes);
    assert_non_null(file);
    memcpy(file, &length, sizeof length);
    memcpy(file + sizeof length, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        file[sizeof length + header_bytes + i] = (unsigned char)i;
    write_file(path, file, sizeof length + header_bytes + data_bytes);
    free(file);
}

#endif

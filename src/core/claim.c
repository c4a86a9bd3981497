#define _GNU_SOURCE /* O_NOFOLLOW */
#include "core/claim.h"

#include "core/error.h"
#include "core/file.h"
#include "core/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct sli_claim {
    int directory, descriptor;      /* -1: none */
    char of[SLI_TEMPORARY_BYTES];   /* "run.NAME", cut as temporary names cut it */
    char name[SLI_TEMPORARY_BYTES]; /* of the locked file; empty: there is none */
};

/* Creates the locked file, of whose directory and name `of` are known. */
static sl_status create_file(sli_claim *claim, const char *shown)
{
    while (claim->descriptor < 0) {
        uint64_t number;
        SL_TRY(sli_draw_number(shown, &number));
        sli_temporary_name(claim->of, number, claim->name);
        int made =
            openat(claim->directory, claim->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (made < 0) {
            claim->name[0] = '\0';
            return sli_io_error(shown, "cannot be created");
        }
        if (sli_temporary_hold(claim->directory, claim->name, made))
            claim->descriptor = made;
        else
            close(made);
    }
    return SL_OK;
}

/* Whether the entry is no live claim of another process on the same file: a walk stops at one. */
static bool is_harmless(void *context, const char *entry)
{
    const sli_claim *claim = context;
    char owner[SLI_TEMPORARY_BYTES], claim_owner[SLI_TEMPORARY_BYTES];
    if (strcmp(entry, claim->name) == 0 || !sli_temporary_parse(entry, owner) ||
        !sli_temporary_parse(claim->name, claim_owner) || strcmp(owner, claim_owner) != 0)
        return true;
    int other = openat(claim->directory, entry, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (other < 0)
        return true;
    bool is_free = flock(other, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    close(other);
    return is_free;
}

static sl_status open_claim(sli_claim *claim, const char *path)
{
    char *followed, *name = NULL;
    SL_TRY(sli_path_follow(path, &followed));
    sl_status status = sli_path_open_parent(followed, path, &claim->directory, &name);
    free(followed);
    SL_TRY(status);
    snprintf(claim->of, sizeof claim->of, "run.%.*s", SLI_TEMPORARY_BYTES - 5, name);
    free(name);
    sli_temporary_sweep_name(claim->directory, claim->of);
    SL_TRY(create_file(claim, path));
    if (sli_directory_walk(claim->directory, is_harmless, claim))
        return SL_OK;
    return sl_error(SL_ERR_CONFLICT, "%s: another run that has not ended writes it", path);
}

sl_status sli_claim_create(const char *path, sli_claim **out)
{
    sli_claim *claim = *out = calloc(1, sizeof *claim);
    if (!claim)
        return sli_no_memory(path, "a claim");
    claim->directory = claim->descriptor = -1;
    sl_status status = open_claim(claim, path);
    if (status != SL_OK)
        sli_claim_destroy(out);
    return status;
}

void sli_claim_destroy(sli_claim **claim)
{
    sli_claim *dead = claim ? *claim : NULL;
    if (!dead)
        return;
    if (dead->descriptor >= 0) {
        (void)unlinkat(dead->directory, dead->name, 0);
        close(dead->descriptor);
    }
    if (dead->directory >= 0)
        close(dead->directory);
    free(dead);
    *claim = NULL;
}

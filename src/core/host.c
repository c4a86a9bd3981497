#include "core/host.h"

#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void sli_host_name(char name[SLI_HOST_NAME_BYTES])
{
    memset(name, 0, SLI_HOST_NAME_BYTES);
    if (gethostname(name, SLI_HOST_NAME_BYTES - 1) != 0)
        snprintf(name, SLI_HOST_NAME_BYTES, "unknown");
}

enum { DIGEST_BYTES = (SLI_HOST_ID_BYTES - 1) / 2 };

/* The kernel draws a number at its start, which containers of one host see as well; network
 * namespaces have numbers. The host's name stands in where /proc is missing. */
static void digest_host(unsigned char digest[DIGEST_BYTES])
{
    char boot_id[SLI_HOST_NAME_BYTES] = "", network[64] = "", text[128];
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    bool known = file && fgets(boot_id, sizeof boot_id, file);
    if (file)
        fclose(file);
    if (!known)
        sli_host_name(boot_id);
    if (readlink("/proc/self/ns/net", network, sizeof network - 1) < 0)
        network[0] = '\0';
    snprintf(text, sizeof text, "%s%s", boot_id, network);
    crypto_generichash(digest, DIGEST_BYTES, (const unsigned char *)text, strlen(text), NULL, 0);
}

void sli_host_id(char id[SLI_HOST_ID_BYTES])
{
    unsigned char digest[DIGEST_BYTES];
    digest_host(digest);
    sodium_bin2hex(id, SLI_HOST_ID_BYTES, digest, sizeof digest);
}

int64_t sli_host_number(void)
{
    unsigned char digest[DIGEST_BYTES];
    uint64_t number;
    digest_host(digest);
    memcpy(&number, digest, sizeof number);
    return (int64_t)(number >> 1);
}

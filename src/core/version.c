#include "sluice/status.h"

const char *sl_version(void)
{
    return SLUICE_VERSION;
}

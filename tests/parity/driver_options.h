/* The options key=value... of the drivers. A missing or malformed one ends the driver. */
#ifndef PARITY_DRIVER_OPTIONS_H
#define PARITY_DRIVER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* `arguments` ends with NULL, as main's. */
const char *option_text(char **arguments, const char *key);
double option_number(char **arguments, const char *key);
int64_t option_count(char **arguments, const char *key);
bool option_is(char **arguments, const char *key, const char *value);

#endif

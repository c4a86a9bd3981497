/* Text from files, names and the network, made fit for a terminal. */
#ifndef SLI_CORE_PRINTABLE_H
#define SLI_CORE_PRINTABLE_H

#include <stddef.h>

/* Output bytes per escaped input byte (\x1b). */
enum { SLI_PRINTABLE_GROWTH = 4 };

/* Writes the text to `to` [room] and returns the length written, without the 0 at its end. Control
 * characters (C0, DEL, C1) but those in `kept`, and bytes that are no UTF-8, become `\x` and two
 * hexadecimal digits each; other characters stay. Text that does not fit ends before the first
 * character that does not: there is always room with SLI_PRINTABLE_GROWTH times its length, and 1.
 */
size_t sli_printable(const char *text, const char *kept, char *to, size_t room);

#endif

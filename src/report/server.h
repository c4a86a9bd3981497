/* The live page's web server (libmicrohttpd). It works on the thread that calls it, and never waits
 * for a browser: what a page shows is one text, of which a browser that is slow gets the newest
 * when it has read the one before. */
#ifndef SLI_REPORT_SERVER_H
#define SLI_REPORT_SERVER_H

#include "sluice/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct sli_server sli_server;

enum { SLI_SERVER_KEY_BYTES = 33 }; /* 128 random bits as text */

/* Listens at "[ADDRESS:]PORT"; without an address at the loopback, with port 0 at any free port.
 * An address beyond the loopback makes the page ask for a token. Errors: SL_ERR_INVALID for a text
 * that is no address, SL_ERR_IO, SL_ERR_UNSUPPORTED in a library without libmicrohttpd. */
sl_status sli_server_create(const char *address, sli_server **out);

/* "http://127.0.0.1:8080/", with the token where there is one. */
const char *sli_server_url(const sli_server *server);

/* A random word for the page's scripts: a page with others' is not run. */
const char *sli_server_nonce(const sli_server *server);

/* What / is: a page, which the server takes over. */
void sli_server_set_page(sli_server *server, char *page, size_t bytes);

/* Sends every page the text, which the server takes over, as the newest event. */
void sli_server_publish(sli_server *server, char *text, size_t bytes);

/* Serves for at most `seconds`. */
void sli_server_turn(sli_server *server, double seconds);

/* Ends all connections, after at most `seconds` in which pages get the newest event. */
void sli_server_destroy(sli_server **server, double seconds);

#endif

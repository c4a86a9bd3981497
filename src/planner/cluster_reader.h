/* Reading a cluster file's objects and numbers: cluster.c and cluster_profile.c say which there
 * are.
 */
#ifndef SLI_PLANNER_CLUSTER_READER_H
#define SLI_PLANNER_CLUSTER_READER_H

#include "core/json.h"
#include "planner/cluster.h"

enum { SLI_CLUSTER_MOST_MEMBERS = 16, SLI_CLUSTER_PATH_BYTES = 64 };

typedef struct sli_cluster_reader {
    const char *name;
    sli_json json;
    sli_cluster *cluster;
} sli_cluster_reader;

/* A number of an object. */
typedef struct sli_number_field {
    const char *name;
    size_t offset; /* of a double, or of an int where it is a count */
    bool is_count, is_required;
    double least, most, initial;
} sli_number_field;

/* An object of the file that is read. */
typedef struct sli_cluster_object {
    char path[SLI_CLUSTER_PATH_BYTES]; /* "nodes[0]"; empty: the whole file */
    int line;
    const char *const *names; /* of its members; then NULL */
    sli_json_value values[SLI_CLUSTER_MOST_MEMBERS];
} sli_cluster_object;

/* The line of a place in the file's text. */
int sli_cluster_line(const sli_cluster_reader *reader, const char *at);

/* Errors of SL_ERR_FORMAT: of a member's value, which must be `expected`, and of one that is not
 * there. */
sl_status sli_cluster_refuse(const sli_cluster_reader *reader, const sli_cluster_object *object,
                             const char *member, sli_json_value value, const char *expected);
sl_status sli_cluster_refuse_missing(const sli_cluster_reader *reader,
                                     const sli_cluster_object *object, const char *member);

/* Finds the object's members, `out`'s path and names being set. */
sl_status sli_cluster_open_object(const sli_cluster_reader *reader, sli_json_value value,
                                  sli_cluster_object *out);
/* All NULL where it is not there. */
sli_json_value sli_cluster_member(const sli_cluster_object *object, const char *name);

/* Begins a walk over a member that must be there, and `expected`: a list. */
sl_status sli_cluster_walk_list(const sli_cluster_reader *reader, const sli_cluster_object *object,
                                const char *name, const char *expected, sli_json_walk *out);

/* False where the value is no number. */
bool sli_cluster_parse_number(const sli_cluster_reader *reader, sli_json_value value, double *out);

/* A text of less than `bytes` bytes. */
sl_status sli_cluster_read_text(const sli_cluster_reader *reader, const sli_cluster_object *object,
                                const char *name, char *out, size_t bytes);

/* Reads numbers, or gives them their initial value, and lists them as inputs. */
sl_status sli_cluster_read_number(const sli_cluster_reader *reader,
                                  const sli_cluster_object *object, const sli_number_field *field,
                                  void *into);
sl_status sli_cluster_read_numbers(const sli_cluster_reader *reader,
                                   const sli_cluster_object *object, const sli_number_field *fields,
                                   size_t count, void *into);

/* Lists a number with the line that it comes from (0: it is a default), and what has measured it,
 * where the object says so in a member "measured". */
sl_status sli_cluster_list_input(const sli_cluster_reader *reader, const sli_cluster_object *object,
                                 const char *name, double value, int line);

/* The member "profile" of a kind of nodes, which has one. (cluster_profile.c) */
sl_status sli_cluster_read_profile(const sli_cluster_reader *reader, const sli_cluster_object *node,
                                   sli_kind_profile *out);

#endif

#include "comm/mpi/kinds.h"

bool sli_hub_message_is_sound(const sli_wire_message *message, int processes)
{
    bool is_error = message->number < SL_OK && message->number >= SL_ERR_INTERNAL;
    switch (message->kind) {
    case SLI_HUB_REFUSE:
    case SLI_HUB_BREAK:
        return message->size > 0 && is_error;
    case SLI_HUB_DEAD:
        return message->size == processes;
    case SLI_HUB_BYE:
    case SLI_HUB_END:
        return message->number == 0 || message->number == 1;
    default:
        return message->size > 0;
    }
}

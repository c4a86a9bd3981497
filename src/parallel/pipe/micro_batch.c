/* How a batch is cut into micro-batches: as torch.chunk cuts a tensor. */
#include "parallel/pipe/micro_batch.h"
#include "tensor/tensor.h"

#include "sluice/pipe.h"

int sl_micro_batches(int64_t rows, int most, int64_t *sizes)
{
    if (rows < 1 || most < 1)
        return 0;
    int64_t size = rows / most + (rows % most != 0);
    int count = 0;
    for (int64_t left = rows; left > 0; left -= size, count++)
        if (sizes)
            sizes[count] = left < size ? left : size;
    return count;
}

sl_status sli_micro_rows(const sl_tensor *batch, int batch_micros, int micro, sl_tensor **out)
{
    int64_t rows = sl_tensor_shape(batch)->size[0],
            size = rows / batch_micros + (rows % batch_micros != 0);
    int64_t first = size * micro, left = rows - first;
    return sli_tensor_narrow(batch, first, left < size ? left : size, out);
}

"""What lab 04's checks ask, as code for a notebook: a launch, what the microscope says of it, and the results.

A case's inputs are its variables; `record`, `report` and `show_table` come from the lab's first cell.
"""

SILU_MUL = """\
size, y = gate.numel(), torch.empty_like(gate, dtype=torch.float32 if wide else gate.dtype)
programs = triton.cdiv(size, BLOCK)
trace = record(silu_mul_kernel, programs, gate, up, y, size, BLOCK=BLOCK, outputs=["y_ptr"])
show_table(report(trace).table())
y"""
SOFTMAX = """\
(rows, columns), y = x.shape, torch.empty_like(x, dtype=torch.float32 if wide else x.dtype)
sizes = {"BLOCK": triton.next_power_of_2(columns)}
trace = record(softmax_kernel, rows, x, y, columns, **sizes, outputs=["y_ptr"])
show_table(report(trace).table())
y"""

RMS_NORM = """\
rows, columns = x.shape
y, r = torch.empty_like(x, dtype=torch.float32 if wide else x.dtype), torch.empty(rows)
sizes = {"BLOCK": triton.next_power_of_2(columns)}
trace = record(rms_norm_kernel, rows, x, w, y, r, columns, eps, **sizes, outputs=["y_ptr", "r_ptr"])
show_table(report(trace).table())
y, r"""
RMS_NORM_BACKWARD = """\
rows, columns = x.shape
dx, dw = (torch.empty_like(one, dtype=torch.float32 if wide else x.dtype) for one in (x, w))
share = torch.empty(programs, columns)
sizes = {"BLOCK": triton.next_power_of_2(columns)}
arrays, outputs = (dy, x, w, r, dx, share), ["dx_ptr", "share_ptr"]
trace = record(rms_norm_backward_kernel, programs, *arrays, rows, columns, **sizes, outputs=outputs)
show_table(report(trace).table())
each = BLOCK_of_sum_shares
trace = record(
    sum_shares_kernel, triton.cdiv(columns, each), share, dw, programs, columns, BLOCK=each, outputs=["dw_ptr"]
)
show_table(report(trace).table())
dx, share, dw"""

TILE_ORDER = """\
programs = tiles_m * tiles_n
m, n = torch.empty(programs, dtype=torch.int32), torch.empty(programs, dtype=torch.int32)
trace = record(order_kernel, programs, m, n, tiles_m, tiles_n, GROUP=group, outputs=["m_ptr", "n_ptr"])
m, n"""
MATMUL = """\
if a_turned:
    a = a.T.contiguous().T
if b_turned:
    b = b.T.contiguous().T
if apart:
    a, b = (torch.nn.functional.pad(x, (0, 5))[:, :-5] for x in (a, b))
(M, K), N = a.shape, b.shape[1]
c = torch.empty(M, N, dtype=torch.float32 if wide else a.dtype)
programs = triton.cdiv(M, BLOCK_M) * triton.cdiv(N, BLOCK_N)
sizes = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "GROUP": group}
trace = record(
    matmul_kernel, programs, a, b, c, M, N, K, *a.stride(), *b.stride(), **sizes, outputs=["c_ptr"]
)
show_table(report(trace).table())
c"""

FLASH = """\
heads, S, D = q.shape
out, lse = torch.empty_like(q), torch.empty(heads, S)
grid = triton.cdiv(S, BLOCK_M), heads
sizes = {"BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N, "BLOCK_D": max(16, triton.next_power_of_2(D))}
trace = record(flash_kernel, grid, q, k, v, out, lse, S, D, scale, **sizes, outputs=["out_ptr", "lse_ptr"])
show_table(report(trace).table())
out, lse"""

DECODE = """\
(sequences, heads, D), (_, PAGE, kv_heads, _) = q.shape, k.shape
out = torch.empty_like(q, dtype=torch.float32 if wide else q.dtype)
sizes = {"GROUP": heads // kv_heads, "PAGE": PAGE, "D": D}
arrays = (q, k, v, table, length, out)
trace = record(
    decode_kernel, (sequences, kv_heads), *arrays, table.shape[1], scale, **sizes, outputs=["out_ptr"]
)
show_table(report(trace).table())
out"""

# Linear algebra, transforms and element-wise functions of numpy, for the given number of seconds.
import sys, time
import numpy as np

end = time.time() + int(sys.argv[1])
rng = np.random.default_rng(1)
a, v = rng.random((300, 300)), rng.random(200000)
while time.time() < end:
    a @ a
    np.linalg.solve(a, a)
    np.linalg.svd(a[:80, :80])
    np.fft.fft(v)
    np.sort(v)
    np.exp(v) + np.sin(v) * np.sqrt(v)
    (a.astype(np.float32) @ a.astype(np.float32)).sum()
    np.einsum("ij,jk->ik", a[:60, :60], a[:60, :60])

/* A library that is loaded at run time, and replaced or removed while it is mapped. */
static volatile int sink;

__attribute__((noinline)) static int inner(int (*callee)(int), int n)
{
	char buffer[64];

	for (int i = 0; i < 64; i++)
		buffer[i] = (char)(n + i);
	n = callee(n) + buffer[n & 63];
	return n + sink;
}

int library_calls(int (*callee)(int), int n)
{
	return inner(callee, n) * 2 + sink;
}

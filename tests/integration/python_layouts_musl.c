/* Sets a thread-specific value, says its key, its value and the thread's own address, and waits. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
	pthread_key_t key;

	for (int i = 0; i < 5; i++)
		pthread_key_create(&key, 0);
	pthread_setspecific(key, (void *)0x1234abcd);
	printf("%u %lu\n", key, (unsigned long)pthread_self());
	fflush(stdout);
	pause();
	return 0;
}

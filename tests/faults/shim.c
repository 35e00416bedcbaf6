// Makes one call of a process fail that writes below a folder or to a socket: the Nth, with an error number, or by a
// kill halfway.
//
// LD_PRELOAD puts these functions before those of the C library. `fault_arm` begins the count; `fault_seen` returns a
// letter for each call: `b` writes bytes that can be halved, `f` another call on files, `s` a socket.
// A call on files counts if the file, or the folder in which a name changes, is below the folder.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
#define MOST_CALLS 65536
static char letters[MOST_CALLS + 1];
static long seen, wanted;
static int number; // of the error; 0 kills
static int lasting; // every later call on files fails, too, or every later one on sockets: the disk is full
static int halves; // the call writes half of its bytes and succeeds; the later ones fail
static int counts_sockets;

void fault_arm(const char *folder, long at, int error, int stays, int half, int sockets) {
    strncpy(root, folder, sizeof root - 1);
    root_length = strlen(root);
    seen = 0;
    wanted = at;
    number = error;
    lasting = stays;
    halves = half;
    counts_sockets = sockets;
    memset(letters, 0, sizeof letters);
}

const char *fault_seen(void) { return letters; }

static int below(const char *path) {
    return root_length && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int is_name_below(int folder, const char *name) {
    char path[PATH_MAX];
    if (!root_length || !name) return 0;
    if (name[0] == '/') return below(name);
    if (folder == AT_FDCWD) return getcwd(path, sizeof path) && below(path);
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int is_file_below(int file) { return is_name_below(file, ""); }

// Whether this call fails. A kill of a call that writes bytes comes after half of them (`ON_BYTES`).
static int fails(char letter) {
    seen++;
    if (seen <= MOST_CALLS) letters[seen - 1] = letter;
    if (!wanted || seen < wanted || (seen == wanted && halves)) return 0;
    if (seen > wanted && (!lasting || (letter == 's') != (letters[wanted - 1] == 's'))) return 0;
    if (!number) kill(getpid(), SIGKILL);
    errno = number;
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define ON_FILE(type, name, parameters, arguments, file)                                                               \
    type name parameters { return is_file_below(file) && fails('f') ? (type)-1 : NEXT(name) arguments; }
#define ON_NAME(name, parameters, arguments, folder, path)                                                             \
    int name parameters { return is_name_below(folder, path) && fails('f') ? -1 : NEXT(name) arguments; }
// A socket that fails is broken for whoever reads from it, too.
static ssize_t breaks(int file, char letter) {
    if (letter == 's') shutdown(file, SHUT_RDWR);
    errno = number;
    return -1;
}

#define ON_HALVES(name, parameters, arguments, halved, counts, letter)                                                 \
    ssize_t name parameters {                                                                                          \
        if (!(counts)) return NEXT(name) arguments;                                                                    \
        int is_wanted = seen + 1 == wanted;                                                                            \
        if (!number && is_wanted) (void)!NEXT(name) halved;                                                            \
        if (fails(letter)) return breaks(f, letter);                                                                   \
        if (halves && is_wanted) return NEXT(name) halved;                                                             \
        return NEXT(name) arguments;                                                                                   \
    }
#define ON_BYTES(name, parameters, arguments, halved, file)                                                            \
    ON_HALVES(name, parameters, arguments, halved, is_file_below(file), n > 1 ? 'b' : 'f')
#define ON_SOCKET(name, parameters, arguments, halved) ON_HALVES(name, parameters, arguments, halved, counts_sockets, 's')

ON_BYTES(write, (int f, const void *b, size_t n), (f, b, n), (f, b, n / 2), f)
ON_BYTES(pwrite, (int f, const void *b, size_t n, off_t o), (f, b, n, o), (f, b, n / 2, o), f)
ON_BYTES(pwrite64, (int f, const void *b, size_t n, off64_t o), (f, b, n, o), (f, b, n / 2, o), f)
ON_BYTES(sendfile, (int f, int s, off_t *o, size_t n), (f, s, o, n), (f, s, o, n / 2), f)
ON_BYTES(sendfile64, (int f, int s, off64_t *o, size_t n), (f, s, o, n), (f, s, o, n / 2), f)
ON_BYTES(copy_file_range, (int s, off64_t *i, int f, off64_t *o, size_t n, unsigned g), (s, i, f, o, n, g),
         (s, i, f, o, n / 2, g), f)
ON_SOCKET(send, (int f, const void *b, size_t n, int g), (f, b, n, g), (f, b, n / 2, g))
ON_SOCKET(sendto, (int f, const void *b, size_t n, int g, const struct sockaddr *a, socklen_t l), (f, b, n, g, a, l),
          (f, b, n / 2, g, a, l))
ON_FILE(ssize_t, writev, (int f, const struct iovec *v, int n), (f, v, n), f)
ON_FILE(int, fsync, (int f), (f), f)
ON_FILE(int, fdatasync, (int f), (f), f)
ON_FILE(int, ftruncate, (int f, off_t n), (f, n), f)
ON_FILE(int, ftruncate64, (int f, off64_t n), (f, n), f)
ON_NAME(rename, (const char *a, const char *b), (a, b), AT_FDCWD, b)
ON_NAME(renameat, (int i, const char *a, int j, const char *b), (i, a, j, b), j, b)
ON_NAME(renameat2, (int i, const char *a, int j, const char *b, unsigned g), (i, a, j, b, g), j, b)
ON_NAME(link, (const char *a, const char *b), (a, b), AT_FDCWD, b)
ON_NAME(linkat, (int i, const char *a, int j, const char *b, int g), (i, a, j, b, g), j, b)
ON_NAME(symlink, (const char *a, const char *b), (a, b), AT_FDCWD, b)
ON_NAME(symlinkat, (const char *a, int j, const char *b), (a, j, b), j, b)
ON_NAME(unlink, (const char *a), (a), AT_FDCWD, a)
ON_NAME(unlinkat, (int i, const char *a, int g), (i, a, g), i, a)
ON_NAME(rmdir, (const char *a), (a), AT_FDCWD, a)
ON_NAME(mkdir, (const char *a, mode_t m), (a, m), AT_FDCWD, a)
ON_NAME(mkdirat, (int i, const char *a, mode_t m), (i, a, m), i, a)

static int writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC); }

#define ON_OPEN(name, parameters, arguments, folder, path)                                                             \
    int name parameters {                                                                                              \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        return writes(flags) && is_name_below(folder, path) && fails('f') ? -1 : NEXT(name) arguments;                    \
    }
ON_OPEN(open, (const char *a, int flags, ...), (a, flags, mode), AT_FDCWD, a)
ON_OPEN(open64, (const char *a, int flags, ...), (a, flags, mode), AT_FDCWD, a)
ON_OPEN(openat, (int i, const char *a, int flags, ...), (i, a, flags, mode), i, a)
ON_OPEN(openat64, (int i, const char *a, int flags, ...), (i, a, flags, mode), i, a)

// Makes one call of a process fail that writes below a folder: the Nth, with an error number, or by a kill halfway.
//
// LD_PRELOAD puts these functions before those of the C library. `fault_arm` begins the count; `fault_seen` returns it.
// A call counts if the file, or the folder in which a name changes, is below the folder.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
static long seen, wanted;
static int number; // of the error; 0 kills
static int lasting; // every later call fails, too: the disk is full

void fault_arm(const char *folder, long at, int error, int stays) {
    strncpy(root, folder, sizeof root - 1);
    root_length = strlen(root);
    seen = 0;
    wanted = at;
    number = error;
    lasting = stays;
}

long fault_seen(void) { return seen; }

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

// Whether this call fails. A kill of a call that writes bytes comes after half of them (`half`).
static int fails(void) {
    seen++;
    if (!wanted || seen < wanted || (seen > wanted && !lasting)) return 0;
    if (!number) kill(getpid(), SIGKILL);
    errno = number;
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define ON_FILE(type, name, parameters, arguments, file)                                                               \
    type name parameters { return is_file_below(file) && fails() ? (type)-1 : NEXT(name) arguments; }
#define ON_NAME(name, parameters, arguments, folder, path)                                                             \
    int name parameters { return is_name_below(folder, path) && fails() ? -1 : NEXT(name) arguments; }
#define ON_BYTES(name, parameters, arguments, halved, file)                                                            \
    ssize_t name parameters {                                                                                          \
        if (!is_file_below(file)) return NEXT(name) arguments;                                                         \
        if (!number && seen + 1 == wanted) (void)!NEXT(name) halved;                                                   \
        return fails() ? -1 : NEXT(name) arguments;                                                                    \
    }

ON_BYTES(write, (int f, const void *b, size_t n), (f, b, n), (f, b, n / 2), f)
ON_BYTES(pwrite, (int f, const void *b, size_t n, off_t o), (f, b, n, o), (f, b, n / 2, o), f)
ON_BYTES(pwrite64, (int f, const void *b, size_t n, off64_t o), (f, b, n, o), (f, b, n / 2, o), f)
ON_BYTES(sendfile, (int f, int s, off_t *o, size_t n), (f, s, o, n), (f, s, o, n / 2), f)
ON_BYTES(sendfile64, (int f, int s, off64_t *o, size_t n), (f, s, o, n), (f, s, o, n / 2), f)
ON_BYTES(copy_file_range, (int s, off64_t *i, int f, off64_t *o, size_t n, unsigned g), (s, i, f, o, n, g),
         (s, i, f, o, n / 2, g), f)
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
        return writes(flags) && is_name_below(folder, path) && fails() ? -1 : NEXT(name) arguments;                    \
    }
ON_OPEN(open, (const char *a, int flags, ...), (a, flags, mode), AT_FDCWD, a)
ON_OPEN(open64, (const char *a, int flags, ...), (a, flags, mode), AT_FDCWD, a)
ON_OPEN(openat, (int i, const char *a, int flags, ...), (i, a, flags, mode), i, a)
ON_OPEN(openat64, (int i, const char *a, int flags, ...), (i, a, flags, mode), i, a)

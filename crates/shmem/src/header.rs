//! `include/shmem.h` and `include/pshmem.h`, generated from the table of types from which the functions are made.
//! Only the test below uses it, and writes the files on request (`cargo xtask header`).

use std::fmt::Write as _;

use crate::abi::table::{all_types, atomics, bits, integers, scalars, swaps, waited};

/// Returns C's name of a type, from its name in function names.
fn c(name: &str) -> String {
    match name {
        "longdouble" => "long double".into(),
        "schar" => "signed char".into(),
        "longlong" => "long long".into(),
        "uchar" => "unsigned char".into(),
        "ushort" => "unsigned short".into(),
        "uint" => "unsigned int".into(),
        "ulong" => "unsigned long".into(),
        "ulonglong" => "unsigned long long".into(),
        "complexf" | "complexd" => format!("trunkline_{name}_t"),
        "float" | "double" | "char" | "short" | "int" | "long" => name.into(),
        _ => format!("{name}_t"),
    }
}

/// Returns the names in a table of types.
macro_rules! names {
    ($table:ident) => {{
        let mut names: Vec<&'static str> = Vec::new();
        macro_rules! row {
            ($name:literal, $of:ty) => {
                names.push($name);
            };
            ($name:literal, $of:ty, $kind:ident) => {
                names.push($name);
            };
        }
        $table!(row);
        names
    }};
}

/// Types that C distinguishes; all others are aliases of these.
const APART: [&str; 15] = [
    "float",
    "double",
    "longdouble",
    "char",
    "schar",
    "short",
    "int",
    "long",
    "longlong",
    "uchar",
    "ushort",
    "uint",
    "ulong",
    "ulonglong",
    "",
];

/// A function for several types, or for one.
struct Function {
    /// Its name without `shmem_`; `TYPE` stands for the name of the type.
    name: String,
    out: &'static str,
    /// Its parameters; `T` stands for the type.
    arguments: &'static str,
    types: Vec<&'static str>,
    /// Whether there is a variant with a context as first parameter.
    ctx: bool,
    /// The parameter whose type selects the function in a generic call.
    tells: &'static str,
}

/// Replaces `T` by a type in a declaration.
fn with_type(text: &str, name: &str) -> String {
    let mut out = String::new();
    for (at, word) in
        text.split_inclusive(|letter: char| !letter.is_alphanumeric() && letter != '_').enumerate()
    {
        let _ = at;
        match word.strip_prefix('T') {
            Some(rest) if !rest.starts_with(|letter: char| letter.is_alphanumeric() || letter == '_') => {
                out += &c(name);
                out += rest;
            }
            _ => out += word,
        }
    }
    out
}

/// Returns the names of parameters, in order.
fn parameters(arguments: &str) -> Vec<String> {
    if arguments == "void" {
        return Vec::new();
    }
    let name = |argument: &str| {
        let word = argument.rsplit(|letter: char| !letter.is_alphanumeric() && letter != '_');
        word.into_iter().next().unwrap_or_default().to_owned()
    };
    arguments.split(", ").map(name).collect()
}

fn typed(
    list: &mut Vec<Function>,
    types: &[&'static str],
    rows: &[(&str, &'static str, &'static str, bool, &'static str)],
) {
    for &(name, out, arguments, ctx, tells) in rows {
        let name = format!("TYPE_{name}");
        list.push(Function { name, out, arguments, types: types.to_vec(), ctx, tells });
    }
}

fn plain(list: &mut Vec<Function>, rows: &[(&str, &'static str, &'static str, bool)]) {
    for &(name, out, arguments, ctx) in rows {
        list.push(Function { name: name.into(), out, arguments, types: Vec::new(), ctx, tells: "" });
    }
}

const PUT: &str = "T *dest, const T *source, size_t nelems, int pe";
const IPUT: &str = "T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe";
const SIGNAL: &str =
    "T *dest, const T *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe";
const V_PUT: &str = "void *dest, const void *source, size_t nelems, int pe";
const V_IPUT: &str = "void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe";
const V_SIGNAL: &str =
    "void *dest, const void *source, size_t nelems, uint64_t *sig_addr, uint64_t signal, int sig_op, int pe";
const SET: &str = "int PE_start, int logPE_stride, int PE_size, long *pSync";
const MANY: &str = "T *ivars, size_t nelems, const int *status, int cmp, T cmp_value";
const SOME: &str = "T *ivars, size_t nelems, size_t *indices, const int *status, int cmp, T cmp_value";
const MANY_VECTOR: &str = "T *ivars, size_t nelems, const int *status, int cmp, T *cmp_values";
const SOME_VECTOR: &str =
    "T *ivars, size_t nelems, size_t *indices, const int *status, int cmp, T *cmp_values";

fn moves(list: &mut Vec<Function>) {
    let all = names!(all_types);
    typed(
        list,
        &all,
        &[
            ("put", "void", PUT, true, "dest"),
            ("get", "void", PUT, true, "dest"),
            ("put_nbi", "void", PUT, true, "dest"),
            ("get_nbi", "void", PUT, true, "dest"),
            ("iput", "void", IPUT, true, "dest"),
            ("iget", "void", IPUT, true, "dest"),
            ("put_signal", "void", SIGNAL, true, "dest"),
            ("put_signal_nbi", "void", SIGNAL, true, "dest"),
        ],
    );
    typed(
        list,
        &names!(scalars),
        &[
            ("p", "void", "T *dest, T value, int pe", true, "dest"),
            ("g", "T", "const T *source, int pe", true, "source"),
        ],
    );
    for size in ["8", "16", "32", "64", "128", "mem"] {
        for (name, arguments) in [
            (format!("put{size}"), V_PUT),
            (format!("get{size}"), V_PUT),
            (format!("put{size}_nbi"), V_PUT),
            (format!("get{size}_nbi"), V_PUT),
            (format!("put{size}_signal"), V_SIGNAL),
            (format!("put{size}_signal_nbi"), V_SIGNAL),
        ] {
            plain(list, &[(&name, "void", arguments, true)]);
        }
        if size != "mem" {
            plain(
                list,
                &[
                    (&format!("iput{size}"), "void", V_IPUT, true),
                    (&format!("iget{size}"), "void", V_IPUT, true),
                ],
            );
        }
    }
}

fn words(list: &mut Vec<Function>) {
    typed(
        list,
        &names!(swaps),
        &[
            ("atomic_fetch", "T", "const T *source, int pe", true, "source"),
            ("atomic_set", "void", "T *dest, T value, int pe", true, "dest"),
            ("atomic_swap", "T", "T *dest, T value, int pe", true, "dest"),
            ("atomic_fetch_nbi", "void", "T *fetch, const T *source, int pe", true, "fetch"),
            ("atomic_swap_nbi", "void", "T *fetch, T *dest, T value, int pe", true, "dest"),
        ],
    );
    typed(
        list,
        &names!(atomics),
        &[
            ("atomic_compare_swap", "T", "T *dest, T cond, T value, int pe", true, "dest"),
            ("atomic_fetch_inc", "T", "T *dest, int pe", true, "dest"),
            ("atomic_inc", "void", "T *dest, int pe", true, "dest"),
            ("atomic_fetch_add", "T", "T *dest, T value, int pe", true, "dest"),
            ("atomic_add", "void", "T *dest, T value, int pe", true, "dest"),
            ("atomic_compare_swap_nbi", "void", "T *fetch, T *dest, T cond, T value, int pe", true, "dest"),
            ("atomic_fetch_inc_nbi", "void", "T *fetch, T *dest, int pe", true, "dest"),
            ("atomic_fetch_add_nbi", "void", "T *fetch, T *dest, T value, int pe", true, "dest"),
        ],
    );
    let by_bits = names!(bits);
    typed(
        list,
        &by_bits,
        &[
            ("atomic_fetch_and", "T", "T *dest, T value, int pe", true, "dest"),
            ("atomic_and", "void", "T *dest, T value, int pe", true, "dest"),
            ("atomic_fetch_or", "T", "T *dest, T value, int pe", true, "dest"),
            ("atomic_or", "void", "T *dest, T value, int pe", true, "dest"),
            ("atomic_fetch_xor", "T", "T *dest, T value, int pe", true, "dest"),
            ("atomic_xor", "void", "T *dest, T value, int pe", true, "dest"),
            ("atomic_fetch_and_nbi", "void", "T *fetch, T *dest, T value, int pe", true, "dest"),
            ("atomic_fetch_or_nbi", "void", "T *fetch, T *dest, T value, int pe", true, "dest"),
            ("atomic_fetch_xor_nbi", "void", "T *fetch, T *dest, T value, int pe", true, "dest"),
        ],
    );
}

fn waits(list: &mut Vec<Function>) {
    typed(
        list,
        &names!(waited),
        &[
            ("wait_until", "void", "T *ivar, int cmp, T cmp_value", false, "ivar"),
            ("wait_until_all", "void", MANY, false, "ivars"),
            ("wait_until_any", "size_t", MANY, false, "ivars"),
            ("wait_until_some", "size_t", SOME, false, "ivars"),
            ("wait_until_all_vector", "void", MANY_VECTOR, false, "ivars"),
            ("wait_until_any_vector", "size_t", MANY_VECTOR, false, "ivars"),
            ("wait_until_some_vector", "size_t", SOME_VECTOR, false, "ivars"),
            ("test", "int", "T *ivar, int cmp, T cmp_value", false, "ivar"),
            ("test_all", "int", MANY, false, "ivars"),
            ("test_any", "size_t", MANY, false, "ivars"),
            ("test_some", "size_t", SOME, false, "ivars"),
            ("test_all_vector", "int", MANY_VECTOR, false, "ivars"),
            ("test_any_vector", "size_t", MANY_VECTOR, false, "ivars"),
            ("test_some_vector", "size_t", SOME_VECTOR, false, "ivars"),
        ],
    );
    plain(
        list,
        &[
            ("signal_fetch", "uint64_t", "const uint64_t *sig_addr", false),
            ("signal_wait_until", "uint64_t", "uint64_t *sig_addr, int cmp, uint64_t cmp_value", false),
        ],
    );
}

fn collectives(list: &mut Vec<Function>) {
    const TO_ALL: &str = "T *dest, const T *source, int nreduce, int PE_start, int logPE_stride, int PE_size, T *pWrk, long *pSync";
    let reduce = "shmem_team_t team, T *dest, const T *source, size_t nreduce";
    typed(
        list,
        &names!(all_types),
        &[
            (
                "broadcast",
                "int",
                "shmem_team_t team, T *dest, const T *source, size_t nelems, int PE_root",
                false,
                "dest",
            ),
            ("collect", "int", "shmem_team_t team, T *dest, const T *source, size_t nelems", false, "dest"),
            ("fcollect", "int", "shmem_team_t team, T *dest, const T *source, size_t nelems", false, "dest"),
            ("alltoall", "int", "shmem_team_t team, T *dest, const T *source, size_t nelems", false, "dest"),
            (
                "alltoalls",
                "int",
                "shmem_team_t team, T *dest, const T *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems",
                false,
                "dest",
            ),
        ],
    );
    let mut with_complex = names!(all_types);
    with_complex.extend(["complexf", "complexd"]);
    for (op, types) in [
        ("and", names!(integers)),
        ("or", names!(integers)),
        ("xor", names!(integers)),
        ("min", names!(all_types)),
        ("max", names!(all_types)),
        ("sum", with_complex.clone()),
        ("prod", with_complex),
    ] {
        typed(list, &types, &[(&format!("{op}_reduce"), "int", reduce, false, "dest")]);
        typed(list, &types, &[(&format!("{op}_to_all"), "void", TO_ALL, false, "")]);
    }
    let mem = "shmem_team_t team, void *dest, const void *source, size_t nelems";
    plain(
        list,
        &[
            (
                "broadcastmem",
                "int",
                "shmem_team_t team, void *dest, const void *source, size_t nelems, int PE_root",
                false,
            ),
            ("collectmem", "int", mem, false),
            ("fcollectmem", "int", mem, false),
            ("alltoallmem", "int", mem, false),
            (
                "alltoallsmem",
                "int",
                "shmem_team_t team, void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems",
                false,
            ),
        ],
    );
    let set = "void *dest, const void *source, size_t nelems, int PE_start, int logPE_stride, int PE_size, long *pSync";
    let set_from = "void *dest, const void *source, size_t nelems, int PE_root, int PE_start, int logPE_stride, int PE_size, long *pSync";
    let set_apart = "void *dest, const void *source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int PE_start, int logPE_stride, int PE_size, long *pSync";
    for bits in ["32", "64"] {
        for (name, arguments) in [
            ("broadcast", set_from),
            ("collect", set),
            ("fcollect", set),
            ("alltoall", set),
            ("alltoalls", set_apart),
        ] {
            plain(list, &[(&format!("{name}{bits}"), "void", arguments, false)]);
        }
    }
    plain(
        list,
        &[
            ("barrier_all", "void", "void", false),
            ("sync_all", "void", "void", false),
            ("barrier", "void", SET, false),
            ("sync", "void", SET, false),
            ("team_sync", "int", "shmem_team_t team", false),
        ],
    );
}

fn rest(list: &mut Vec<Function>) {
    plain(
        list,
        &[
            ("init", "void", "void", false),
            ("init_thread", "int", "int requested, int *provided", false),
            ("query_thread", "void", "int *provided", false),
            ("finalize", "void", "void", false),
            ("global_exit", "void", "int status", false),
            ("my_pe", "int", "void", false),
            ("n_pes", "int", "void", false),
            ("pe_accessible", "int", "int pe", false),
            ("addr_accessible", "int", "const void *addr, int pe", false),
            ("ptr", "void *", "const void *dest, int pe", false),
            ("team_ptr", "void *", "shmem_team_t team, const void *dest, int pe", false),
            ("info_get_version", "void", "int *major, int *minor", false),
            ("info_get_name", "void", "char *name", false),
            ("malloc", "void *", "size_t size", false),
            ("malloc_with_hints", "void *", "size_t size, long hints", false),
            ("calloc", "void *", "size_t count, size_t size", false),
            ("align", "void *", "size_t alignment, size_t size", false),
            ("realloc", "void *", "void *ptr, size_t size", false),
            ("free", "void", "void *ptr", false),
            ("ctx_create", "int", "long options, shmem_ctx_t *ctx", false),
            ("team_create_ctx", "int", "shmem_team_t team, long options, shmem_ctx_t *ctx", false),
            ("ctx_destroy", "void", "shmem_ctx_t ctx", false),
            ("ctx_get_team", "int", "shmem_ctx_t ctx, shmem_team_t *team", false),
            ("fence", "void", "void", true),
            ("quiet", "void", "void", true),
            ("team_my_pe", "int", "shmem_team_t team", false),
            ("team_n_pes", "int", "shmem_team_t team", false),
            (
                "team_get_config",
                "int",
                "shmem_team_t team, long config_mask, shmem_team_config_t *config",
                false,
            ),
            ("team_translate_pe", "int", "shmem_team_t src_team, int src_pe, shmem_team_t dest_team", false),
            (
                "team_split_strided",
                "int",
                "shmem_team_t parent, int start, int stride, int size, const shmem_team_config_t *config, long config_mask, shmem_team_t *team",
                false,
            ),
            (
                "team_split_2d",
                "int",
                "shmem_team_t parent, int xrange, const shmem_team_config_t *xaxis_config, long xaxis_mask, shmem_team_t *xaxis_team, const shmem_team_config_t *yaxis_config, long yaxis_mask, shmem_team_t *yaxis_team",
                false,
            ),
            ("team_destroy", "void", "shmem_team_t team", false),
            ("set_lock", "void", "long *lock", false),
            ("test_lock", "int", "long *lock", false),
            ("clear_lock", "void", "long *lock", false),
        ],
    );
}

fn old(list: &mut Vec<Function>) {
    typed(
        list,
        &names!(swaps),
        &[
            ("swap", "T", "T *dest, T value, int pe", false, "dest"),
            ("fetch", "T", "const T *source, int pe", false, "source"),
            ("set", "void", "T *dest, T value, int pe", false, "dest"),
        ],
    );
    typed(
        list,
        &names!(atomics),
        &[
            ("cswap", "T", "T *dest, T cond, T value, int pe", false, "dest"),
            ("fadd", "T", "T *dest, T value, int pe", false, "dest"),
            ("finc", "T", "T *dest, int pe", false, "dest"),
            ("add", "void", "T *dest, T value, int pe", false, "dest"),
            ("inc", "void", "T *dest, int pe", false, "dest"),
        ],
    );
    typed(
        list,
        &["short", "int", "long", "longlong"],
        &[("wait", "void", "T *ivar, T cmp_value", false, "")],
    );
    plain(
        list,
        &[
            ("wait", "void", "long *ivar, long cmp_value", false),
            ("set_cache_inv", "void", "void", false),
            ("clear_cache_inv", "void", "void", false),
            ("udcflush", "void", "void", false),
            ("set_cache_line_inv", "void", "void *dest", false),
            ("clear_cache_line_inv", "void", "void *dest", false),
            ("udcflush_line", "void", "void *dest", false),
        ],
    );
}

fn functions() -> Vec<Function> {
    let mut list = Vec::new();
    rest(&mut list);
    moves(&mut list);
    words(&mut list);
    waits(&mut list);
    collectives(&mut list);
    old(&mut list);
    // No table has the functions for one `long double`: `abi::long_double` defines them.
    for function in &mut list {
        if function.name == "TYPE_p" || function.name == "TYPE_g" {
            function.types.push("longdouble");
        }
    }
    list
}

/// Returns one prototype per type and context.
fn prototypes(list: &[Function], prefix: &str) -> String {
    let mut out = String::new();
    for function in list {
        let one = [""];
        let types = if function.types.is_empty() { &one[..] } else { &function.types[..] };
        for name in types {
            let returns = with_type(function.out, name);
            let arguments = with_type(function.arguments, name);
            let of = function.name.replace("TYPE", name);
            let star = if returns.ends_with('*') { "" } else { " " };
            let _ = writeln!(out, "{returns}{star}{prefix}{of}({arguments});");
            if function.ctx {
                let rest = if arguments == "void" { String::new() } else { format!(", {arguments}") };
                let _ = writeln!(out, "{returns}{star}{prefix}ctx_{of}(shmem_ctx_t ctx{rest});");
            }
        }
    }
    out
}

/// Returns the generic macros: C11 selects by the type of an argument, and by the number of arguments whether one is
/// a context.
fn generics(list: &[Function]) -> String {
    let mut out = String::new();
    for function in list.iter().filter(|function| !function.tells.is_empty()) {
        let names = parameters(function.arguments);
        let short = function.name.trim_start_matches("TYPE_");
        let upper = short.to_uppercase();
        let list = names.join(", ");
        let mut choose = |suffix: &str, ctx: &str, arguments: &str| {
            let told = |name: &&&str| {
                APART.contains(*name) || is_only(function, name) || name.starts_with("complex")
            };
            let rows = function.types.iter().filter(told);
            let rows: Vec<String> = rows
                .map(|name| format!("{}: shmem_{ctx}{}", c(name), function.name.replace("TYPE", name)))
                .collect();
            let _ = writeln!(
                out,
                "#define SHMEM_C11_{upper}{suffix}({arguments}) _Generic(*({}), {})({arguments})",
                function.tells,
                rows.join(", ")
            );
        };
        choose("", "", &list);
        if function.ctx {
            choose("_CTX", "ctx_", &format!("ctx, {list}"));
            let count = names.len() + 1;
            let nothing = ", SHMEM_C11_NONE".repeat(count - 2);
            let _ = writeln!(
                out,
                "#define shmem_{short}(...) SHMEM_C11_PICK_{count}(__VA_ARGS__, SHMEM_C11_{upper}_CTX, \
                 SHMEM_C11_{upper}{nothing}, 0)(__VA_ARGS__)"
            );
        } else {
            let _ = writeln!(out, "#define shmem_{short}(...) SHMEM_C11_{upper}(__VA_ARGS__)");
        }
    }
    out
}

/// Returns whether a fixed-width type is the only name under which the function has that C type.
fn is_only(function: &Function, name: &str) -> bool {
    let of = match name {
        "int8" => "schar",
        "int32" => "int",
        "int64" => "long",
        _ => return false,
    };
    !function.types.contains(&of)
}

/// Returns the overloads for C++.
fn overloads(list: &[Function]) -> String {
    let mut out = String::new();
    for function in list.iter().filter(|function| !function.tells.is_empty()) {
        let short = function.name.trim_start_matches("TYPE_");
        let names = parameters(function.arguments).join(", ");
        let complex = |name: &str| name.starts_with("complex");
        for name in &function.types {
            if !(APART.contains(name) || is_only(function, name) || complex(name)) {
                continue;
            }
            let returns = with_type(function.out, name);
            let arguments = with_type(function.arguments, name);
            let of = function.name.replace("TYPE", name);
            let back = if returns == "void" { "" } else { "return " };
            let _ = writeln!(
                out,
                "static inline {returns} shmem_{short}({arguments}) {{ {back}shmem_{of}({names}); }}"
            );
            if function.ctx {
                let _ = writeln!(
                    out,
                    "static inline {returns} shmem_{short}(shmem_ctx_t ctx, {arguments}) {{ {back}shmem_ctx_{of}(ctx, {names}); }}"
                );
            }
        }
    }
    out
}

/// Returns the text of `shmem.h`.
fn shmem_h() -> String {
    let list = functions();
    let mut picks = String::new();
    for count in 2..=8 {
        let taken: Vec<String> = (1..=count).map(|at| format!("_{at}")).collect();
        let _ = writeln!(picks, "#define SHMEM_C11_PICK_{count}({}, name, ...) name", taken.join(", "));
    }
    let generic = generics(&list);
    let overloaded = overloads(&list);
    HEAD.to_owned()
        + &prototypes(&list, "shmem_")
        + MIDDLE
        + "\n#ifdef __cplusplus\n"
        + &overloaded
        + "static inline int shmem_sync(shmem_team_t team) { return shmem_team_sync(team); }\n"
        + "\n#elif __STDC_VERSION__ >= 201112L && !defined(SHMEM_NO_GENERIC)\n"
        + &picks
        + &generic
        + "#define SHMEM_C11_SYNC_TEAM(team) shmem_team_sync(team)\n"
        + "#define SHMEM_C11_SYNC_SET(start, stride, size, words) (shmem_sync)(start, stride, size, words)\n"
        + "#define shmem_sync(...) SHMEM_C11_PICK_4(__VA_ARGS__, SHMEM_C11_SYNC_SET, SHMEM_C11_NONE, SHMEM_C11_NONE, \
           SHMEM_C11_SYNC_TEAM, 0)(__VA_ARGS__)\n"
        + "\n#else\nvoid shmem_wait_until(long *ivar, int cmp, long cmp_value);\n#endif\n\n#endif\n"
}

const HEAD: &str = "\
/* OpenSHMEM 1.5, by Trunkline. Written by `cargo xtask header` from the table of types; changes here are lost. */
#ifndef SHMEM_H
#define SHMEM_H

#include <stddef.h>
#include <stdint.h>
typedef float _Complex trunkline_complexf_t;
typedef double _Complex trunkline_complexd_t;

#define SHMEM_MAJOR_VERSION 1
#define SHMEM_MINOR_VERSION 5
#define SHMEM_MAX_NAME_LEN 64
#define SHMEM_VENDOR_STRING \"Trunkline\"
#define _SHMEM_MAJOR_VERSION SHMEM_MAJOR_VERSION
#define _SHMEM_MINOR_VERSION SHMEM_MINOR_VERSION
#define _SHMEM_MAX_NAME_LEN SHMEM_MAX_NAME_LEN
#define _SHMEM_VENDOR_STRING SHMEM_VENDOR_STRING

#define SHMEM_THREAD_SINGLE 0
#define SHMEM_THREAD_FUNNELED 1
#define SHMEM_THREAD_SERIALIZED 2
#define SHMEM_THREAD_MULTIPLE 3

#define SHMEM_CMP_EQ 1
#define SHMEM_CMP_NE 2
#define SHMEM_CMP_GT 3
#define SHMEM_CMP_LE 4
#define SHMEM_CMP_LT 5
#define SHMEM_CMP_GE 6
#define _SHMEM_CMP_EQ SHMEM_CMP_EQ
#define _SHMEM_CMP_NE SHMEM_CMP_NE
#define _SHMEM_CMP_GT SHMEM_CMP_GT
#define _SHMEM_CMP_LE SHMEM_CMP_LE
#define _SHMEM_CMP_LT SHMEM_CMP_LT
#define _SHMEM_CMP_GE SHMEM_CMP_GE

#define SHMEM_SIGNAL_SET 0
#define SHMEM_SIGNAL_ADD 1

#define SHMEM_CTX_SERIALIZED (1L << 0)
#define SHMEM_CTX_PRIVATE (1L << 1)
#define SHMEM_CTX_NOSTORE (1L << 2)

#define SHMEM_MALLOC_ATOMICS_REMOTE (1L << 0)
#define SHMEM_MALLOC_SIGNAL_REMOTE (1L << 1)

#define SHMEM_TEAM_NUM_CONTEXTS (1L << 0)

/* The number of words that an active set needs, and their value between calls. */
#define SHMEM_SYNC_VALUE 0L
#define SHMEM_SYNC_SIZE 32
#define SHMEM_BARRIER_SYNC_SIZE SHMEM_SYNC_SIZE
#define SHMEM_BCAST_SYNC_SIZE SHMEM_SYNC_SIZE
#define SHMEM_COLLECT_SYNC_SIZE SHMEM_SYNC_SIZE
#define SHMEM_REDUCE_SYNC_SIZE SHMEM_SYNC_SIZE
#define SHMEM_ALLTOALL_SYNC_SIZE SHMEM_SYNC_SIZE
#define SHMEM_ALLTOALLS_SYNC_SIZE SHMEM_SYNC_SIZE
#define SHMEM_REDUCE_MIN_WRKDATA_SIZE 1
#define _SHMEM_SYNC_VALUE SHMEM_SYNC_VALUE
#define _SHMEM_BARRIER_SYNC_SIZE SHMEM_BARRIER_SYNC_SIZE
#define _SHMEM_BCAST_SYNC_SIZE SHMEM_BCAST_SYNC_SIZE
#define _SHMEM_COLLECT_SYNC_SIZE SHMEM_COLLECT_SYNC_SIZE
#define _SHMEM_REDUCE_SYNC_SIZE SHMEM_REDUCE_SYNC_SIZE
#define _SHMEM_ALLTOALL_SYNC_SIZE SHMEM_ALLTOALL_SYNC_SIZE
#define _SHMEM_ALLTOALLS_SYNC_SIZE SHMEM_ALLTOALLS_SYNC_SIZE
#define _SHMEM_REDUCE_MIN_WRKDATA_SIZE SHMEM_REDUCE_MIN_WRKDATA_SIZE

typedef struct trunkline_ctx *shmem_ctx_t;
typedef struct trunkline_team *shmem_team_t;
typedef struct {
    int num_contexts;
} shmem_team_config_t;

#define SHMEM_CTX_INVALID ((shmem_ctx_t)0)
#define SHMEM_CTX_DEFAULT ((shmem_ctx_t)1)
#define SHMEM_TEAM_INVALID ((shmem_team_t)0)
#define SHMEM_TEAM_WORLD ((shmem_team_t)1)
#define SHMEM_TEAM_SHARED ((shmem_team_t)2)

#ifdef __cplusplus
extern \"C\" {
#endif

";

const MIDDLE: &str = "\
void shmem_pcontrol(int level, ...);

/* Deprecated. */
void start_pes(int npes);
int _my_pe(void);
int _num_pes(void);
void *shmalloc(size_t size);
void *shmemalign(size_t alignment, size_t size);
void *shrealloc(void *ptr, size_t size);
void shfree(void *ptr);

#ifdef __cplusplus
}
#endif

";

/// Returns the text of `pshmem.h`.
fn pshmem_h() -> String {
    let declared = prototypes(&functions(), "pshmem_");
    "/* The names by which tools call the functions that they intercept. Written by `cargo xtask header`. */\n"
        .to_owned()
        + "#ifndef PSHMEM_H\n#define PSHMEM_H\n\n#include <shmem.h>\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n"
        + &declared
        + "void pshmem_pcontrol(int level, ...);\nvoid pshmem_wait_until(long *ivar, int cmp, long cmp_value);\n\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n"
}

#[test]
fn headers_match_the_table() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let write = std::env::var("TRUNKLINE_HEADER").is_ok_and(|word| word == "write");
    for (name, text) in [("shmem.h", shmem_h()), ("pshmem.h", pshmem_h())] {
        let path = folder.join(name);
        if write {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == text, "{}: `cargo xtask header` writes it", path.display());
    }
}

//! Names of types as programmers write them.

/// Arguments of templates that only repeat a default.
const DEFAULTS: [&str; 8] = [
    "std::allocator",
    "std::char_traits",
    "std::less",
    "std::hash",
    "std::equal_to",
    "std::default_delete",
    "alloc::alloc::Global",
    "std::hash::random::RandomState",
];
/// Templates with a shorter name.
const SHORTER: [(&str, &str); 4] = [
    ("std::basic_string<char>", "std::string"),
    ("std::basic_string<wchar_t>", "std::wstring"),
    ("alloc::sync::ArcInner<", "Arc<"),
    ("alloc::rc::RcInner<", "Rc<"),
];
/// Maximum nesting of arguments that are made shorter.
const MAX_DEPTH: u32 = 64;

/// Shortens the name of a type: without default arguments of templates, and without the paths of Rust's own types.
pub fn pretty(name: &str) -> String {
    let mut out = String::new();
    let mut rest = name;
    part(&mut rest, &mut out, MAX_DEPTH);
    out.push_str(rest);
    out
}

/// Moves a list of arguments, or a whole name, from `rest` to `out`, up to a bracket that it does not open.
fn part(rest: &mut &str, out: &mut String, left: u32) {
    loop {
        let begin = out.len();
        argument(rest, out, left);
        let is_default = begin > 0 && is_default(out[begin..].trim_start());
        if is_default {
            out.truncate(begin);
            if out.ends_with(',') {
                out.pop();
            }
        } else {
            shorten(out, begin);
        }
        match rest.strip_prefix(',') {
            Some(more) => {
                *rest = more;
                out.push(',');
            }
            None => return,
        }
    }
}

/// Moves one argument.
fn argument(rest: &mut &str, out: &mut String, left: u32) {
    while let Some(c) = rest.chars().next() {
        match c {
            ',' | '>' | ')' | ']' => {
                let is_arrow = c == '>' && out.ends_with('-');
                if !is_arrow {
                    return;
                }
            }
            _ => {}
        }
        *rest = &rest[c.len_utf8()..];
        out.push(c);
        if let ('<' | '(' | '[', Some(left)) = (c, left.checked_sub(1)) {
            part(rest, out, left);
            if let Some(c) = rest.chars().next() {
                while c == '>' && out.ends_with(' ') {
                    out.pop();
                }
                *rest = &rest[c.len_utf8()..];
                out.push(c);
            }
        }
    }
}

fn is_default(argument: &str) -> bool {
    let head = argument.split('<').next().unwrap_or_default();
    DEFAULTS.contains(&head.trim())
}

/// Shortens the argument that begins at `begin`.
fn shorten(out: &mut String, begin: usize) {
    let begin = begin + out[begin..].len() - out[begin..].trim_start().len();
    let own = out[begin..].replace("std::__cxx11::", "std::");
    let short = SHORTER.iter().find_map(|(long, short)| {
        let rest = own.strip_prefix(long)?;
        Some(format!("{short}{rest}"))
    });
    let own = short.unwrap_or_else(|| without_path(&own).to_owned());
    out.truncate(begin);
    out.push_str(&own);
}

/// The name of a type of Rust's own libraries without its path.
fn without_path(name: &str) -> &str {
    let head = name.split(['<', '(', '[', '{']).next().unwrap_or_default();
    let of_rust = [
        "alloc::",
        "core::",
        "std::collections::",
        "std::sync::",
        "hashbrown::",
    ];
    match of_rust.iter().any(|of| head.starts_with(of)) {
        true => &name[head.rfind("::").map_or(0, |at| at + 2)..],
        false => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_paths_are_left_out() {
        for (name, short) in [
            ("Order", "Order"),
            (
                "std::vector<Order, std::allocator<Order> >",
                "std::vector<Order>",
            ),
            (
                "std::map<int, Order, std::less<int>, std::allocator<std::pair<int const, Order> > >",
                "std::map<int, Order>",
            ),
            (
                "std::vector<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, \
                 std::allocator<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > > >",
                "std::vector<std::string>",
            ),
            (
                "std::function<int (char, long)>",
                "std::function<int (char, long)>",
            ),
            (
                "alloc::vec::Vec<demo::Order, alloc::alloc::Global>",
                "Vec<demo::Order>",
            ),
            (
                "std::collections::hash::map::HashMap<u64, alloc::string::String, std::hash::random::RandomState>",
                "HashMap<u64, String>",
            ),
            ("alloc::sync::ArcInner<demo::Order>", "Arc<demo::Order>"),
            (
                "fn(u8) -> alloc::string::String",
                "fn(u8) -> alloc::string::String",
            ),
            ("(u64, alloc::string::String)", "(u64, String)"),
            ("std::allocator<int>", "std::allocator<int>"),
            (">> , ((", ">> , (("),
        ] {
            assert_eq!(pretty(name), short);
        }
    }
}

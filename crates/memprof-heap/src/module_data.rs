//! The writable data of a process's modules, where allocators have their roots.

use memprof_sys::residency::Vma;

/// The writable data of all modules: file mappings, and the anonymous memory directly after them.
pub(super) fn module_data(vmas: &[Vma]) -> Vec<(u64, u64, &str)> {
    let mut found: Vec<(u64, u64, &str)> = Vec::new();
    // End and name of the previous module.
    let mut module: Option<(u64, &str)> = None;
    for vma in vmas {
        let of_file = vma.ino != 0 && !vma.perms.shared;
        let behind = module.filter(|(end, _)| *end == vma.start.0 && vma.ino == 0);
        module = match (of_file, behind) {
            (true, _) => Some((vma.end.0, &vma.name)),
            (_, Some((_, name))) => Some((vma.end.0, name)),
            _ => None,
        };
        let Some((_, name)) = module.filter(|_| vma.perms.write) else {
            continue;
        };
        match found.last_mut() {
            Some((_, end, last)) if *end == vma.start.0 && *last == name => *end = vma.end.0,
            _ => found.push((vma.start.0, vma.end.0, name)),
        }
    }
    found
}

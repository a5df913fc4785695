//! Address-space calls: private, shared and file mappings.

use crate::common::files;
use crate::run::{KIB, MIB, Run};
use crate::{Scenario, Skip, scenario};
use memprof_profile::Kind::{self, Anon, File, Resident, Shmem};

pub const SCENARIOS: &[Scenario] = &[
    scenario!(private_memory),
    scenario!(zero_page),
    scenario!(madv_dontneed),
    scenario!(madv_free),
    scenario!(map_populate),
    scenario!(madv_populate),
    scenario!(mlock),
    scenario!(mremap),
    scenario!(partial_unmap),
    scenario!(large_reservation),
    scenario!(realloc_of_large_blocks),
    scenario!(stack_growth),
    scenario!(read_into_fresh_memory),
    scenario!(shared_memory),
    scenario!(memfd_without_mapping),
    scenario!(memfd_hole),
    scenario!(private_copy_of_a_memfd),
    scenario!(copy_on_write_of_file_pages),
    scenario!(shared_file_mapping),
    scenario!(vfork),
    scenario!(clone_vm),
    scenario!(exec),
];

type Done = Result<(), Skip>;

fn private_memory(run: &mut Run) -> Done {
    let all = [("cmd_touch", Anon, 8 * MIB)];
    run.after(&["anon 0 8388608", "touch 0 0 8388608"], &all);
    // The owner stays: no page is brought in.
    run.after(&["again 0 0 8388608"], &all);
    run.after(&["unmap 0 0 8388608"], &[("cmd_touch", Anon, 0)]);
    let other = [("cmd_again", Anon, 2 * MIB), ("cmd_touch", Anon, 0)];
    run.after(&["anon 0 2097152", "again 0 0 2097152"], &other);
    Ok(())
}

fn zero_page(run: &mut Run) -> Done {
    run.after(
        &["anon 0 4194304", "look 0 0 4194304"],
        &[("cmd_look", Resident, 0)],
    );
    let owners = [("cmd_touch", Anon, MIB), ("cmd_look", Resident, 0)];
    run.after(&["touch 0 1048576 1048576"], &owners);
    Ok(())
}

fn madv_dontneed(run: &mut Run) -> Done {
    run.tell(&["anon 0 6291456", "touch 0 0 6291456"]);
    // Neither end is aligned to 2 MiB.
    run.after(
        &["advise 0 1052672 3149824 4"],
        &[("cmd_touch", Anon, 6 * MIB - 3_149_824)],
    );
    let owners = [
        ("cmd_touch", Anon, 6 * MIB - 3_149_824),
        ("cmd_again", Anon, 3_149_824),
    ];
    run.after(&["again 0 0 6291456"], &owners);
    Ok(())
}

fn madv_free(run: &mut Run) -> Done {
    run.tell(&["anon 0 4194304", "touch 0 0 4194304"]);
    // The pages stay resident until the kernel reclaims them.
    run.after(&["advise 0 0 4194304 8"], &[("cmd_touch", Anon, 4 * MIB)]);
    // A store cancels MADV_FREE for the page.
    run.after(&["again 0 0 1048576"], &[("cmd_touch", Anon, 4 * MIB)]);
    // MADV_PAGEOUT reclaims MADV_FREE pages even without swap.
    run.can("advise 0 1048576 3145728 21")?;
    let left = run.check(&[]).under("cmd_touch", Anon);
    assert!(left < 4 * MIB, "nothing was reclaimed: {left}");
    let report = run.after(&["again 0 0 4194304"], &[]);
    let (old, new) = (
        report.under("cmd_touch", Anon),
        report.under("cmd_again", Anon),
    );
    assert_eq!((old, new), (left, 4 * MIB - left), "{}", report.text());
    Ok(())
}

fn map_populate(run: &mut Run) -> Done {
    run.after(&["populate 0 6291456"], &[("cmd_populate", Anon, 6 * MIB)]);
    run.after(&["touch 0 0 6291456"], &[("cmd_populate", Anon, 6 * MIB)]);
    run.after(
        &["move 0", "unmap 0 0 1052672"],
        &[("cmd_populate", Anon, 6 * MIB - 1_052_672)],
    );
    Ok(())
}

fn madv_populate(run: &mut Run) -> Done {
    run.tell(&["anon 0 4194304", "touch 0 0 1048576"]);
    run.can("advise 0 0 4194304 23")?;
    // The mapping function owns all pages that had no owner.
    let owners = [("cmd_touch", Anon, MIB), ("cmd_anon", Anon, 3 * MIB)];
    run.after(&[], &owners);
    Ok(())
}

fn mlock(run: &mut Run) -> Done {
    let owners = [("cmd_touch", Anon, MIB), ("cmd_anon", Anon, 3 * MIB)];
    run.after(
        &["anon 0 4194304", "touch 0 0 1048576", "lock 0 0 4194304"],
        &owners,
    );
    run.after(&["unlock 0 0 4194304"], &owners);
    Ok(())
}

fn mremap(run: &mut Run) -> Done {
    run.tell(&["anon 0 3149824", "touch 0 0 3149824", "move 0"]);
    run.after(&["grow 0 2097152"], &[("cmd_touch", Anon, 3_149_824)]);
    let owners = [("cmd_touch", Anon, 3_149_824), ("cmd_again", Anon, 2 * MIB)];
    run.after(&["again 0 3149824 2097152", "move 0"], &owners);
    run.after(
        &["shrink 0 1048576"],
        &[("cmd_touch", Anon, 3_149_824), ("cmd_again", Anon, MIB)],
    );
    run.after(
        &["unmap 0 0 4198400"],
        &[("cmd_touch", Anon, 0), ("cmd_again", Anon, 0)],
    );
    Ok(())
}

fn partial_unmap(run: &mut Run) -> Done {
    run.tell(&[
        "anon 0 8388608",
        "touch 0 0 8388608",
        "protect 0 4096 8192 1",
    ]);
    run.tell(&["unmap 0 2093056 12288", "unmap 0 5242880 1048576"]);
    run.after(
        &["advise 0 0 4096 4"],
        &[("cmd_touch", Anon, 7 * MIB - 16 * KIB)],
    );
    Ok(())
}

/// More than 8 GiB with few resident pages: moved, emptied, unmapped, and reused at once.
fn large_reservation(run: &mut Run) -> Done {
    const LEN: u64 = 10 << 30;
    let some = |command: &str, at: u64| format!("{command} 0 {at} 3149824");
    let places = [0, 5 << 30, LEN - 3_149_824];
    let (reserve, empty) = (format!("reserve 0 {LEN}"), format!("advise 0 0 {LEN} 4"));
    let unmap = format!("unmap 0 0 {LEN}");
    let owned = |touch: u64, again: u64| {
        [
            ("cmd_touch", Anon, touch * 3_149_824),
            ("cmd_again", Anon, again * 3_149_824),
        ]
    };
    let touch = places.map(|at| some("touch", at));
    let again = places.map(|at| some("again", at));
    run.tell(&[&reserve, &touch[0], &touch[1], &touch[2]]);
    run.after(&["move 0"], &owned(3, 0));
    run.after(&["move 0", &again[1]], &owned(3, 0));
    run.after(&[&empty, &again[0], &touch[1]], &owned(1, 1));
    run.after(&[&unmap, &reserve, &again[1], &again[2]], &owned(0, 2));
    run.after(&[&unmap], &owned(0, 0));
    Ok(())
}

fn realloc_of_large_blocks(run: &mut Run) -> Done {
    // Blocks of this size are mappings. malloc writes its header to the first page. Nothing touches the last page, which
    // would be resident if a huge page ended there.
    run.tell(&["no_huge_pages"]);
    run.after(&["heap 8388608"], &[("cmd_heap", Anon, 8 * MIB + 4 * KIB)]);
    let grown = run.after(&["realloc 25165824"], &[]);
    grown.must_hold("cmd_realloc", Anon, 16 * MIB);
    run.after(&["realloc 2097152"], &[("cmd_realloc", Anon, 0)]);
    // malloc's own memory stays.
    let left = run.after(&["free"], &[]).under("cmd_heap", Anon);
    assert!(left < 64 * KIB, "{left}");
    Ok(())
}

fn stack_growth(run: &mut Run) -> Done {
    let report = run.after(&["stack 4096"], &[]);
    let bytes = report.under("cmd_stack", Anon);
    // The first of these pages were already resident.
    assert!(
        bytes > 4 * MIB - 256 * KIB && bytes <= 4 * MIB + 4 * KIB,
        "{bytes}"
    );
    Ok(())
}

fn read_into_fresh_memory(run: &mut Run) -> Done {
    run.after(
        &["anon 0 4194304", "fill 0 0 4194304"],
        &[("cmd_fill", Anon, 4 * MIB)],
    );
    Ok(())
}

fn shared_memory(run: &mut Run) -> Done {
    run.after(
        &["shared 0 4194304", "touch 0 0 4194304"],
        &[("cmd_touch", Shmem, 4 * MIB)],
    );
    run.after(
        &["memfd 1 3149824", "again 1 0 3149824", "move 1"],
        &[
            ("cmd_touch", Shmem, 4 * MIB),
            ("cmd_again", Shmem, 3_149_824),
        ],
    );
    run.after(&["unmap 1 0 3149824"], &[("cmd_again", Shmem, 0)]);
    run.after(&["advise 0 0 1048576 9"], &[("cmd_touch", Shmem, 3 * MIB)]);
    run.after(
        &["again 0 0 4194304"],
        &[("cmd_touch", Shmem, 3 * MIB), ("cmd_again", Shmem, MIB)],
    );
    run.after(&["unmap 0 0 4194304"], &[("cmd_touch", Shmem, 0)]);
    Ok(())
}

fn memfd_without_mapping(run: &mut Run) -> Done {
    run.after(
        &["memfd_write 0 4194304"],
        &[("cmd_memfd_write", Kind::All, 0)],
    );
    Ok(())
}

fn memfd_hole(run: &mut Run) -> Done {
    run.tell(&["memfd 0 4194304", "touch 0 0 4194304"]);
    run.after(
        &["remove_range 0 1048576 2097152"],
        &[("cmd_touch", Shmem, 2 * MIB)],
    );
    run.after(&["again 0 0 4194304"], &[]);
    Ok(())
}

fn private_copy_of_a_memfd(run: &mut Run) -> Done {
    run.tell(&["memfd_private 0 4194304", "touch 0 0 1048576"]);
    let report = run.check(&[("cmd_touch", Anon, MIB)]);
    assert_eq!(report.under("cmd_touch", Anon), MIB);
    run.after(
        &["look 0 1048576 1048576", "unmap 0 0 4194304"],
        &[("cmd_touch", Anon, 0)],
    );
    Ok(())
}

fn copy_on_write_of_file_pages(run: &mut Run) -> Done {
    let _file = files::written(&run.path("file"), 4 * MIB);
    run.with("mapprivate 0", "file", "");
    // The kernel may reclaim pages that were only read: its own figure says whether the process still has them.
    let report = (0..10)
        .map(|_| run.after(&["look 0 0 2097152"], &[]))
        .find(|report| File.figure(&report.profile.total) >= 2 * MIB)
        .expect("the pages of the file stay");
    let seen = report.under("cmd_look", File);
    assert!(seen >= 2 * MIB, "{seen} of {}", report.text());
    // Pages that are already mapped, and others.
    let owners = [("cmd_touch", Anon, 2 * MIB), ("cmd_look", Anon, 0)];
    run.after(&["touch 0 1048576 2097152"], &owners);
    run.after(&["advise 0 0 4194304 4"], &[("cmd_touch", Resident, 0)]);
    Ok(())
}

fn shared_file_mapping(run: &mut Run) -> Done {
    let _file = files::written(&run.path("file"), 4 * MIB);
    run.with("mapfile 0", "file", "");
    let report = run.after(&["touch 0 0 4194304"], &[("cmd_touch", Resident, 0)]);
    report.must_hold("cmd_touch", File, 4 * MIB);
    run.after(&["unmap 0 0 4194304"], &[("cmd_touch", File, 0)]);
    Ok(())
}

fn vfork(run: &mut Run) -> Done {
    run.tell(&["anon 0 4194304", "touch 0 0 1048576"]);
    let owners = [("cmd_touch", Anon, MIB), ("child_touches", Anon, 3 * MIB)];
    run.after(&["vfork 0 0 4194304"], &owners);
    Ok(())
}

fn clone_vm(run: &mut Run) -> Done {
    run.tell(&["anon 0 4194304", "touch 0 0 1048576"]);
    let owners = [("cmd_touch", Anon, MIB), ("child_touches", Anon, 3 * MIB)];
    run.after(&["clone_vm 0 0 4194304"], &owners);
    Ok(())
}

fn exec(run: &mut Run) -> Done {
    run.after(
        &["anon 0 4194304", "touch 0 0 4194304"],
        &[("cmd_touch", Anon, 4 * MIB)],
    );
    run.tell(&["exec"]);
    run.begin_anew();
    run.after(
        &["anon 0 1048576", "again 0 0 1048576"],
        &[("cmd_again", Anon, MIB), ("cmd_touch", Anon, 0)],
    );
    Ok(())
}

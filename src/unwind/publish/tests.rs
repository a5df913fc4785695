use super::*;
use crate::unwind::Page;

/// Keeps what is written, with small limits.
#[derive(Default)]
struct Maps {
    rules: HashMap<u32, Rule>,
    chunks: HashMap<u32, Vec<u32>>,
    pages: HashMap<(u32, u32), PageAt>,
    mappings: HashMap<MmId, Vec<CodeMapping>>,
}

impl TableStore for Maps {
    const RULES: u32 = 10;
    const CHUNK_ROWS: u32 = 8;
    const CHUNKS: u32 = 3;
    const MAPPINGS: usize = 4;

    fn write_rules(&mut self, first: u32, rules: &[Rule]) -> Result<()> {
        self.rules.extend((first..).zip(rules.iter().copied()));
        Ok(())
    }

    fn write_rows(&mut self, chunk: u32, parts: &[(u32, &[u32])]) -> Result<()> {
        assert!(chunk < Self::CHUNKS);
        for (first, rows) in parts {
            assert!(*first as usize + rows.len() <= Self::CHUNK_ROWS as usize);
            self.keep(chunk, *first, rows);
        }
        Ok(())
    }

    fn delete_page(&mut self, table: u32, page: u32) {
        assert!(self.pages.remove(&(table, page)).is_some());
    }

    fn write_page(&mut self, table: u32, page: u32, at: PageAt) -> Result<()> {
        self.pages.insert((table, page), at);
        Ok(())
    }

    fn write_mappings(&mut self, mm: MmId, mappings: &[CodeMapping]) -> Result<u64> {
        self.mappings.insert(mm, mappings.to_vec());
        Ok(0)
    }
}

impl Maps {
    fn keep(&mut self, chunk: u32, first: u32, rows: &[u32]) {
        let held = self.chunks.entry(chunk).or_default();
        let end = first as usize + rows.len();
        held.resize(held.len().max(end), 0);
        held[first as usize..end].copy_from_slice(rows);
    }

    /// The row that holds for an address, found as the probe finds it.
    fn row(&self, table: u32, pc: u64) -> Option<u32> {
        let at = self.pages.get(&(table, (pc >> 16) as u32))?;
        let rows = &self.chunks[&at.chunk][at.first as usize..(at.first + at.count) as usize];
        rows.iter()
            .copied()
            .rev()
            .find(|r| u64::from(r & 0xffff) <= (pc & 0xffff))
    }
}

fn module_without_file() -> Arc<Module> {
    Arc::new(Module {
        path: "/nowhere".into(),
        name: "nowhere".into(),
        dev_ino: (0, 0),
        file: None,
        own_executable: false,
    })
}

fn publisher() -> Publisher {
    Publisher::start(Arc::new(EventFd::new().unwrap())).unwrap()
}

fn packed(pages: &[(u32, &[u32])]) -> Packed {
    let mut packed = Packed::default();
    for (number, rows) in pages {
        let (first, count) = (packed.rows.len() as u32, rows.len() as u32);
        packed.pages.push(Page {
            number: *number,
            first,
            count,
        });
        packed.rows.extend(*rows);
    }
    packed
}

#[test]
fn tables_share_chunks_and_pages_do_not_cross_them() {
    let (mut p, mut maps) = (publisher(), Maps::default());
    let rules = [Rule::NOT_COVERED, Rule::STOP];
    let one = packed(&[(0, &[0, 0x1_0005, 9]), (1, &[0x1_0000, 4])]);
    assert_eq!(written(&mut p, &one, &rules, &mut maps), Some(1));
    // Five rows are taken: the next page's four do not fit in the first chunk.
    let two = packed(&[(0, &[0x1_0000, 1, 0x1_0002, 3])]);
    assert_eq!(written(&mut p, &two, &rules, &mut maps), Some(2));
    assert_eq!(maps.pages[&(2, 0)].chunk, 1);
    assert_eq!(maps.pages[&(2, 0)].rules, 2);
    assert_eq!(maps.row(1, 7), Some(0x1_0005));
    assert_eq!(maps.row(1, 0x1_0003), Some(0x1_0000));
    assert_eq!(maps.row(2, 2), Some(0x1_0002));
}

#[test]
fn what_does_not_fit_is_refused_whole() {
    let (mut p, mut maps) = (publisher(), Maps::default());
    let big: Vec<(u32, &[u32])> = (0..4).map(|n| (n, &[0, 1, 2, 3, 4, 5, 6, 7][..])).collect();
    let big = packed(&big);
    assert_eq!(written(&mut p, &big, &[Rule::STOP], &mut maps), None);
    let none = packed(&[]);
    assert_eq!(written(&mut p, &none, &[Rule::STOP; 11], &mut maps), None);
    assert!(maps.pages.is_empty() && maps.rules.is_empty());
    let most = Packed {
        rows: big.rows.clone(),
        pages: big.pages[..3].to_vec(),
    };
    assert!(written(&mut p, &most, &[Rule::STOP], &mut maps).is_some());
}

fn written(p: &mut Publisher, packed: &Packed, rules: &[Rule], maps: &mut Maps) -> Option<u32> {
    p.write(packed, rules, maps)
        .unwrap()
        .map(|place| place.table)
}

#[test]
fn tables_that_nobody_maps_make_room() {
    let (mut p, mut maps) = (publisher(), Maps::default());
    let built = |module: u16| Built {
        module: ModuleId(module),
        file: module_without_file(),
        table: Ok((
            packed(&[(0, &[0, u32::from(module) << 16 | 1, 2, 3, 4])]),
            vec![Rule::STOP; 2],
            Vec::new(),
        )),
    };
    // Five rows each, eight in a chunk: three fit.
    for module in 0..3 {
        p.publish(built(module), &mut maps).unwrap();
        let files = HashSet::from([ModuleId(module)]);
        p.mapped.insert(MmId(u32::from(module)), files);
    }
    p.publish(built(3), &mut maps).unwrap();
    assert_eq!((p.refused(), maps.pages.len()), (1, 3));

    // Nobody maps what was refused: it is not built again.
    p.forget(MmId(1));
    assert!(!p.files.contains_key(&ModuleId(3)));
    p.publish(built(4), &mut maps).unwrap();
    assert_eq!((p.refused(), maps.pages.len()), (1, 3));
    let Some(State::Ready(place, _)) = p.files.get(&ModuleId(4)) else {
        panic!("it is not there");
    };
    assert_eq!(maps.row(place.table, 1), Some(4 << 16 | 1));
    assert!(!p.files.contains_key(&ModuleId(1)), "to be built again");
    assert_eq!(maps.row(1, 1), Some(1), "the others are untouched");
}

#[test]
fn what_was_refused_is_built_again_when_there_is_room() {
    let (mut p, mut maps) = (publisher(), Maps::default());
    let built = |module: u16, rows: u32| Built {
        module: ModuleId(module),
        file: module_without_file(),
        table: Ok((
            packed(&[(0, &(0..rows).collect::<Vec<u32>>())]),
            vec![Rule::STOP],
            Vec::new(),
        )),
    };
    let maps_of = |files: &[u16]| files.iter().map(|n| ModuleId(*n)).collect();
    for module in 0..3 {
        p.publish(built(module, 8), &mut maps).unwrap();
    }
    p.mapped.insert(MmId(1), maps_of(&[0, 1, 3]));
    p.mapped.insert(MmId(2), maps_of(&[1, 2]));
    p.mapped.insert(MmId(3), maps_of(&[1]));
    p.publish(built(3, 8), &mut maps).unwrap();
    let state = |p: &Publisher| match p.files.get(&ModuleId(3)) {
        Some(State::Refused(_)) => "refused",
        Some(State::Wanted) => "wanted",
        Some(State::Ready(..)) => "ready",
        _ => "none",
    };
    assert_eq!(state(&p), "refused");
    // No table is without a user now: trying again would be in vain.
    p.forget(MmId(3));
    assert_eq!(state(&p), "refused");
    p.forget(MmId(2));
    assert_eq!(state(&p), "wanted");
    assert!(p.waiting.contains(&MmId(1)), "its mappings are to name it");
    p.publish(built(3, 8), &mut maps).unwrap();
    assert_eq!(state(&p), "ready");
    assert_eq!(p.refused(), 1, "that it was refused is still said");
}

#[test]
fn pieces_of_a_jit_do_not_crowd_out_files() {
    let (mut p, mut maps) = (publisher(), Maps::default());
    let mut modules = crate::modules::ModuleTable::new();
    // Six mappings of no known file's, where four fit.
    let text: String = (1..7)
        .map(|n| format!("{n}000-{n}800 r-xp 00000000 00:00 0 \n"))
        .collect();
    let code =
        AddressMap::parse(text.as_bytes(), crate::event::Pid(1), None, &mut modules).unwrap();
    p.map(MmId(1), &code, &modules.modules(), &mut maps)
        .unwrap();
    assert_eq!((maps.mappings[&MmId(1)].len(), p.left_out()), (0, 6));
}

/// The own process: its executable's table is built by the thread and then named by its mappings.
#[test]
fn mappings_name_a_table_as_soon_as_it_is_there() {
    struct Large(Maps);
    impl TableStore for Large {
        const RULES: u32 = 65_536;
        const CHUNK_ROWS: u32 = 1 << 18;
        const CHUNKS: u32 = 64;
        const MAPPINGS: usize = 512;
        fn write_rules(&mut self, first: u32, rules: &[Rule]) -> Result<()> {
            self.0.write_rules(first, rules)
        }
        fn write_rows(&mut self, chunk: u32, parts: &[(u32, &[u32])]) -> Result<()> {
            for (first, rows) in parts {
                self.0.keep(chunk, *first, rows);
            }
            Ok(())
        }
        fn delete_page(&mut self, table: u32, page: u32) {
            self.0.delete_page(table, page);
        }
        fn write_page(&mut self, table: u32, page: u32, at: PageAt) -> Result<()> {
            self.0.write_page(table, page, at)
        }
        fn write_mappings(&mut self, mm: MmId, mappings: &[CodeMapping]) -> Result<u64> {
            self.0.write_mappings(mm, mappings)
        }
    }
    let (mut p, mut maps) = (publisher(), Large(Maps::default()));
    let mut modules = crate::modules::ModuleTable::new();
    let own = crate::event::Pid(std::process::id());
    let code = AddressMap::load(own, &mut modules).unwrap();
    let modules = modules.modules();
    p.map(MmId(1), &code, &modules, &mut maps).unwrap();
    assert!(maps.0.mappings[&MmId(1)].iter().all(|m| m.table == 0));
    let mut richer = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while richer.is_empty() && Instant::now() < deadline {
        p.prepare(&code, &modules, &mut maps, Duration::from_secs(60))
            .unwrap();
        richer = p.waiting.drain().collect();
    }
    assert_eq!(richer, [MmId(1)]);
    p.map(MmId(1), &code, &modules, &mut maps).unwrap();
    let here = mappings_name_a_table_as_soon_as_it_is_there as fn() as usize as u64;
    let mapping = maps.0.mappings[&MmId(1)]
        .iter()
        .find(|m| (m.start..m.end).contains(&here));
    let mapping = *mapping.expect("own code is mapped");
    assert_ne!(mapping.table, 0);
    let row = maps
        .0
        .row(mapping.table, here - mapping.bias)
        .expect("own code is covered");
    let at = maps.0.pages[&(mapping.table, ((here - mapping.bias) >> 16) as u32)];
    let rule = maps.0.rules[&(at.rules + (row >> 16))];
    // At a function's entry the return address is on top of the stack.
    assert_eq!((rule.cfa, rule.cfa_offset, rule.ra_offset), (1, 8, -8));
}

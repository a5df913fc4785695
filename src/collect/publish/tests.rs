use super::*;
use memprof_code::interpreter::{EnabledInterpreters, Interpreter};
use memprof_code::unwind::Page;

/// A store of everything that is written, with small limits.
#[derive(Default)]
struct Maps {
    rules: HashMap<u32, Rule>,
    chunks: HashMap<u32, Vec<u32>>,
    pages: HashMap<(u32, u32), PageAt>,
    whole: HashSet<u32>,
    files: HashMap<FileKey, CodeFile>,
    mapped: HashSet<FileNumber>,
}

impl TableStore for Maps {
    const RULES: u32 = 10;
    const CHUNK_ROWS: u32 = 8;
    const CHUNKS: u32 = 3;
    const SEGMENTS: usize = 4;

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

    fn delete_page(&mut self, file: FileNumber, page: u32) {
        assert!(self.pages.remove(&(file.0, page)).is_some());
    }

    fn write_page(&mut self, file: FileNumber, page: u32, at: PageAt) -> Result<()> {
        self.pages.insert((file.0, page), at);
        Ok(())
    }

    fn write_end(&mut self, file: FileNumber) -> Result<()> {
        assert!(self.whole.insert(file.0));
        Ok(())
    }

    fn delete_end(&mut self, file: FileNumber) {
        assert!(self.whole.remove(&file.0));
    }

    fn write_file(&mut self, key: FileKey, file: &CodeFile) -> Result<()> {
        self.files.insert(key, file.clone());
        Ok(())
    }

    fn write_interpreter(&mut self, _: FileNumber, _: &Interpreter) -> Result<()> {
        Ok(())
    }

    fn mapped(&self) -> Result<HashSet<FileNumber>> {
        Ok(self.mapped.clone())
    }
}

impl Maps {
    fn keep(&mut self, chunk: u32, first: u32, rows: &[u32]) {
        let held = self.chunks.entry(chunk).or_default();
        let end = first as usize + rows.len();
        held.resize(held.len().max(end), 0);
        held[first as usize..end].copy_from_slice(rows);
    }

    /// The row that applies to an address, found as the probe finds it.
    fn row(&self, file: u32, pc: u64) -> Option<u32> {
        let at = self.pages.get(&(file, (pc >> 16) as u32))?;
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
        tree: None,
        layout: None,
        functions: None,
        own_executable: false,
    })
}

fn publisher() -> Publisher {
    Publisher::start(Arc::new(EventFd::new().unwrap()), EnabledInterpreters::ALL).unwrap()
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
    assert!(written(&mut p, 1, &one, &rules, &mut maps));
    // Five rows are in use: the next page's four do not fit in the first chunk.
    let two = packed(&[(0, &[0x1_0000, 1, 0x1_0002, 3])]);
    assert!(written(&mut p, 2, &two, &rules, &mut maps));
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
    assert!(!written(&mut p, 1, &big, &[Rule::STOP], &mut maps));
    let none = packed(&[]);
    assert!(!written(&mut p, 2, &none, &[Rule::STOP; 11], &mut maps));
    assert!(maps.pages.is_empty() && maps.rules.is_empty());
    let most = Packed {
        rows: big.rows.clone(),
        pages: big.pages[..3].to_vec(),
    };
    assert!(written(&mut p, 3, &most, &[Rule::STOP], &mut maps));
}

fn written(p: &mut Publisher, file: u32, packed: &Packed, rules: &[Rule], maps: &mut Maps) -> bool {
    let written = p.write(FileNumber(file), packed, rules, maps).unwrap();
    written.is_some()
}

fn key(module: u16) -> FileKey {
    FileKey {
        dev: 1,
        ino: u64::from(module),
        modified: 5,
        size: 100,
    }
}

/// A numbered file whose table is being built.
fn wanted(p: &mut Publisher, module: u16) {
    let numbered = Numbered {
        file: module_without_file(),
        keys: vec![key(module)],
        code: CodeFile {
            number: Some(FileNumber(u32::from(module) + 1)),
            ready: false,
            segments: Vec::new(),
        },
        state: TableState::Ordered,
    };
    p.files.insert(ModuleId(module), numbered);
    p.by_key.insert(key(module), ModuleId(module));
    p.building += 1;
}

fn publish(p: &mut Publisher, module: u16, rows: u32, maps: &mut Maps) {
    let rows: Vec<u32> = (0..rows).map(|n| u32::from(module) << 16 | n).collect();
    let table = Ok((packed(&[(0, &rows)]), vec![Rule::STOP]));
    let module = ModuleId(module);
    p.publish(module, Done::Built(table), maps);
}

fn state(p: &Publisher, module: u16) -> &'static str {
    match p.files.get(&ModuleId(module)).map(|f| &f.state) {
        Some(TableState::Ordered) => "wanted",
        Some(TableState::Ready(_)) => "ready",
        Some(TableState::Refused) => "refused",
        Some(TableState::Unanswered) => "unanswered",
        Some(TableState::None) => "none",
        None => "unknown",
    }
}

#[test]
fn tables_that_nobody_maps_make_room() {
    let (mut p, mut maps) = (publisher(), Maps::default());
    // Five rows each, eight in a chunk: three fit.
    maps.mapped = [1, 2, 3].map(FileNumber).into();
    for module in 0..4 {
        wanted(&mut p, module);
        publish(&mut p, module, 5, &mut maps);
    }
    assert_eq!((p.refused(), maps.pages.len()), (1, 3));
    assert_eq!(state(&p, 3), "refused");
    assert!(maps.files[&key(3)].ready, "nothing to do when it is mapped");

    maps.mapped = [1, 3].map(FileNumber).into();
    wanted(&mut p, 4);
    publish(&mut p, 4, 5, &mut maps);
    assert_eq!((p.refused(), maps.pages.len()), (1, 3));
    assert_eq!((state(&p, 4), state(&p, 1)), ("ready", "unknown"));
    assert_eq!(maps.row(5, 1), Some(4 << 16 | 1));
    assert!(!maps.files[&key(1)].ready, "to be reported again");
    assert!(!p.knows(&key(1)));
    assert_eq!(maps.row(1, 1), Some(1), "the others are untouched");
}

#[test]
fn what_was_refused_is_built_again_when_there_is_room() {
    let (mut p, mut maps) = (publisher(), Maps::default());
    maps.mapped = [1, 2, 3, 4].map(FileNumber).into();
    for module in 0..4 {
        wanted(&mut p, module);
        publish(&mut p, module, 8, &mut maps);
    }
    let retry = |p: &mut Publisher, maps: &mut Maps| {
        p.retried = Instant::now() - 2 * RETRY_PAUSE;
        p.retry(maps);
    };
    // Every table has a user now, so a retry would fail.
    retry(&mut p, &mut maps);
    assert_eq!(state(&p, 3), "refused");
    maps.mapped = [1, 3, 4].map(FileNumber).into();
    retry(&mut p, &mut maps);
    assert_eq!((state(&p, 1), state(&p, 3)), ("unknown", "wanted"));
    publish(&mut p, 3, 8, &mut maps);
    assert_eq!(state(&p, 3), "ready");
    assert_eq!(p.refused(), 1, "that it was refused is still said");
}

/// The test process itself: its executable gets a number, and a thread builds its table.
#[test]
fn a_file_has_a_number_at_once_and_its_table_soon() {
    struct Large(Maps);
    impl TableStore for Large {
        const RULES: u32 = 65_536;
        const CHUNK_ROWS: u32 = 1 << 18;
        const CHUNKS: u32 = 64;
        const SEGMENTS: usize = 8;
        fn write_rules(&mut self, first: u32, rules: &[Rule]) -> Result<()> {
            self.0.write_rules(first, rules)
        }
        fn write_rows(&mut self, chunk: u32, parts: &[(u32, &[u32])]) -> Result<()> {
            for (first, rows) in parts {
                self.0.keep(chunk, *first, rows);
            }
            Ok(())
        }
        fn delete_page(&mut self, file: FileNumber, page: u32) {
            self.0.delete_page(file, page);
        }
        fn write_page(&mut self, file: FileNumber, page: u32, at: PageAt) -> Result<()> {
            self.0.write_page(file, page, at)
        }
        fn write_end(&mut self, file: FileNumber) -> Result<()> {
            self.0.write_end(file)
        }
        fn delete_end(&mut self, file: FileNumber) {
            self.0.delete_end(file);
        }
        fn write_file(&mut self, key: FileKey, file: &CodeFile) -> Result<()> {
            self.0.write_file(key, file)
        }
        fn write_interpreter(&mut self, _: FileNumber, _: &Interpreter) -> Result<()> {
            Ok(())
        }

        fn mapped(&self) -> Result<HashSet<FileNumber>> {
            self.0.mapped()
        }
    }
    let (mut p, mut maps) = (publisher(), Large(Maps::default()));
    let mut modules = ModuleTable::new();
    let own = memprof_sys::ids::Pid(std::process::id());
    let code = memprof_code::modules::AddressMap::load(own, &mut modules).unwrap();
    let here = a_file_has_a_number_at_once_and_its_table_soon as fn() as usize as u64;
    let (module, offset) = code.locate(here).expect("own code is mapped");
    let mut register = |p: &mut Publisher, maps: &mut Large, key| {
        p.register(key, module, &mut modules, maps).unwrap()
    };
    assert_eq!(register(&mut p, &mut maps, key(0)), Registered::Done);
    assert_eq!(register(&mut p, &mut maps, key(0)), Registered::Known);
    let other_mount = FileKey { dev: 2, ..key(0) };
    assert_eq!(register(&mut p, &mut maps, other_mount), Registered::Known);
    let changed = FileKey {
        modified: 6,
        ..key(0)
    };
    assert_eq!(register(&mut p, &mut maps, changed), Registered::Changed);
    let file = maps.0.files[&key(0)].clone();
    assert!(!file.ready);
    p.finish(&mut maps, Duration::from_secs(60));
    assert!(maps.0.files[&key(0)].ready && maps.0.files[&other_mount].ready);

    let number = file.number.expect("an ELF file");
    let segment = file.segments.iter().find(|s| s.offset <= offset);
    let segment = segment.expect("its code");
    let address = offset - segment.offset + segment.addr;
    let frame = modules.in_file(number, address);
    assert_eq!(frame, Some(memprof_profile::Frame::code(module, offset)));
    let row = maps.0.row(number.0, address).expect("own code is covered");
    let at = maps.0.pages[&(number.0, (address >> 16) as u32)];
    let rule = maps.0.rules[&(at.rules + (row >> 16))];
    // At a function's entry the return address is on top of the stack.
    assert_eq!((rule.cfa, rule.cfa_offset, rule.ra_offset), (1, 8, -8));
}

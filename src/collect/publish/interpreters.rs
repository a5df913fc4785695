//! Interpreters found in files, into the probe's map.

use super::{Publisher, TableStore};
use memprof_code::interpreter::{Interpreter, Unread};
use memprof_profile::ModuleId;

impl Publisher {
    /// The files with an interpreter whose frames are not read, found since the last call, each with the reason.
    pub fn take_unread(&mut self) -> Vec<String> {
        std::mem::take(&mut self.unread)
    }

    pub(super) fn publish_interpreter<S: TableStore>(
        &mut self,
        module: ModuleId,
        found: Option<Result<Interpreter, Unread>>,
        store: &mut S,
    ) {
        self.searching -= 1;
        let Some(number) = self.files.get(&module).and_then(|f| f.code.number) else {
            return;
        };
        let read = found.map(|found| {
            let interpreter = found?;
            let kind = interpreter.kind();
            store
                .write_interpreter(number, &interpreter)
                .map_err(|e| Unread {
                    kind,
                    why: e.to_string(),
                })
        });
        if let (Some(Err(Unread { kind, why })), Some(file)) = (read, self.files.get(&module)) {
            let (language, path) = (kind.name(), file.file.path.display());
            self.unread.push(format!(
                "{language}'s functions are not shown: {path}: {why}"
            ));
        }
    }
}

//! A recording in memory, and those who read it meanwhile.

use super::made::{World, layout};
use super::run;
use crate::{Options, Recorder, Recording, RecordingError};

#[test]
fn a_reader_does_not_lock_out_the_recorder() {
    let mut world = World::new(5);
    let mut recorder = Recorder::in_memory(Options::default(), &run(), layout).unwrap();
    let place = recorder.place().clone();
    assert!(recorder.record(&world.report(1000)).unwrap());
    let early = Recording::at(&place).unwrap();
    for _ in 0..3 {
        assert!(recorder.record(&world.report(1000)).unwrap());
    }
    assert_eq!(early.moments().unwrap().len(), 1);
    let late = Recording::at(&place).unwrap();
    assert_eq!(late.moments().unwrap().len(), 4);
    drop(recorder);
    assert_eq!(late.moments().unwrap().len(), 4);
    drop((early, late));
    assert!(matches!(Recording::at(&place), Err(RecordingError::Ended)));
}

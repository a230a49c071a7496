//! Operations on cells of caches in the host's memory.

use puna_backend::partition::states;
use puna_backend::{BackendError, CellMove, States};
use puna_graph::StateId;

use crate::partition::{Kept, OpenVinoPartition};

impl OpenVinoPartition {
    fn of_group(&self, group: usize) -> Vec<StateId> {
        let groups = self.segment.graph.groups();
        let declared = &self.segment.graph.states;
        self.states()
            .into_iter()
            .filter(|state| groups.get(group) == Some(&declared[state.index()].group()))
            .collect()
    }
}

impl States for OpenVinoPartition {
    fn copy(&mut self, group: usize, moves: &[CellMove]) -> Result<(), BackendError> {
        let last = moves.iter().map(|cells| cells.from.max(cells.to) as usize + 1).max().unwrap_or(0);
        self.make_room(group, last)?;
        for state in self.of_group(group) {
            match &mut self.kept[state.index()] {
                Kept::KeyValue { keys, values } => {
                    keys.copy(moves);
                    values.copy(moves);
                }
                Kept::Recurrent { elements, numbers } => {
                    for CellMove { from, to } in moves {
                        let from = *from as usize * *elements;
                        numbers.copy_within(from..from + *elements, *to as usize * *elements);
                    }
                }
                Kept::Elsewhere => {}
            }
        }
        Ok(())
    }

    fn shift(&mut self, group: usize, cells: &[(u32, i32)]) -> Result<(), BackendError> {
        let last = cells.iter().map(|(cell, _)| *cell as usize + 1).max().unwrap_or(0);
        self.make_room(group, last)?;
        for state in self.of_group(group) {
            let Some(turn) = self.turns.get(&state) else { continue };
            if let Kept::KeyValue { keys, .. } = &mut self.kept[state.index()] {
                cells.iter().for_each(|(cell, delta)| keys.turn(*cell as usize, *delta, turn));
            }
        }
        Ok(())
    }

    fn save(&mut self, state: StateId, cells: &[u32]) -> Result<Vec<u8>, BackendError> {
        let last = cells.iter().map(|cell| *cell as usize + 1).max().unwrap_or(0);
        self.room_for(state, last)?;
        let mut bytes = Vec::new();
        for cell in cells.iter().map(|cell| *cell as usize) {
            match &self.kept[state.index()] {
                Kept::KeyValue { keys, values } => {
                    keys.save(cell, &mut bytes);
                    values.save(cell, &mut bytes);
                }
                Kept::Recurrent { elements, numbers } => {
                    let cell = &numbers[cell * elements..][..*elements];
                    bytes.extend(cell.iter().flat_map(|number| number.to_le_bytes()));
                }
                Kept::Elsewhere => {}
            }
        }
        Ok(bytes)
    }

    fn restore(&mut self, state: StateId, cells: &[u32], bytes: &[u8]) -> Result<(), BackendError> {
        let last = cells.iter().map(|cell| *cell as usize + 1).max().unwrap_or(0);
        self.room_for(state, last)?;
        let layer = self.segment.graph.states[state.index()].layer();
        let cell_bytes = match &self.kept[state.index()] {
            Kept::KeyValue { keys, values } => keys.cell_bytes() + values.cell_bytes(),
            Kept::Recurrent { elements, .. } => 4 * elements,
            Kept::Elsewhere => 0,
        };
        let expected = cell_bytes * cells.len();
        if bytes.len() != expected {
            return Err(BackendError::SavedState { layer, found: bytes.len(), expected });
        }
        for (cell, bytes) in cells.iter().zip(bytes.chunks_exact(cell_bytes.max(1))) {
            let cell = *cell as usize;
            match &mut self.kept[state.index()] {
                Kept::KeyValue { keys, values } => {
                    let (key_bytes, value_bytes) = bytes.split_at(keys.cell_bytes());
                    keys.restore(cell, key_bytes);
                    values.restore(cell, value_bytes);
                }
                Kept::Recurrent { elements, numbers } => {
                    let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                    numbers[cell * *elements..].iter_mut().zip(floats).for_each(|(to, from)| *to = from);
                }
                Kept::Elsewhere => {}
            }
        }
        Ok(())
    }

    fn states(&self) -> Vec<StateId> {
        states(&self.segment.graph, self.segment.nodes.clone())
    }
}

impl OpenVinoPartition {
    fn room_for(&mut self, state: StateId, cells: usize) -> Result<(), BackendError> {
        let group = self.segment.graph.states[state.index()].group();
        let group = self.segment.graph.groups().iter().position(|other| *other == group).unwrap_or(0);
        self.make_room(group, cells)
    }
}

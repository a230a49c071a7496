//! Operations on cells of caches, wherever these are; those in the model are out of reach.

use puna_backend::partition::states;
use puna_backend::{BackendError, CellMove, States};
use puna_graph::StateId;

use crate::blocks::recast;
use crate::ir::Element;
use crate::memory::Kept;
use crate::pages::Slot;
use crate::partition::OpenVinoPartition;
use crate::translate::order::HeadOrder;

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
        // The same place of a variable may stand for several cells.
        for CellMove { from, to } in moves {
            match self.columns[group].get(from).copied() {
                Some(column) => self.columns[group].insert(*to, column),
                None => self.columns[group].remove(to),
            };
        }
        let slots = self.page_copies(group, moves)?;
        for state in self.of_group(group) {
            match &mut self.kept[state.index()] {
                Kept::KeyValue { keys, values } => {
                    keys.copy(moves);
                    values.copy(moves);
                }
                Kept::Paged { keys, values } => {
                    keys.copy(&slots);
                    values.copy(&slots);
                }
                Kept::Recurrent { elements, numbers } => {
                    for CellMove { from, to } in moves {
                        let from = *from as usize * *elements;
                        numbers.copy_within(from..from + *elements, *to as usize * *elements);
                    }
                }
                Kept::InModel { .. } | Kept::Elsewhere => {}
            }
        }
        Ok(())
    }

    fn shift(&mut self, group: usize, cells: &[(u32, i32)]) -> Result<(), BackendError> {
        let last = cells.iter().map(|(cell, _)| *cell as usize + 1).max().unwrap_or(0);
        self.make_room(group, last)?;
        let numbers: Vec<u32> = cells.iter().map(|(cell, _)| *cell).collect();
        let slots = self.pages[group].all_slots(&numbers);
        for state in self.of_group(group) {
            let Some(turn) = self.turns.get(&state) else { continue };
            match &mut self.kept[state.index()] {
                Kept::KeyValue { keys, .. } => {
                    cells.iter().for_each(|(cell, delta)| keys.turn(*cell as usize, *delta, turn));
                }
                Kept::Paged { keys, .. } => {
                    slots.iter().for_each(|(slot, index)| keys.turn(*slot, cells[*index].1, turn));
                }
                Kept::InModel { .. } if !cells.is_empty() => return Err(self.out_of_reach("shifted")),
                Kept::InModel { .. } | Kept::Recurrent { .. } | Kept::Elsewhere => {}
            }
        }
        Ok(())
    }

    fn save(&mut self, state: StateId, cells: &[u32]) -> Result<Vec<u8>, BackendError> {
        let last = cells.iter().map(|cell| *cell as usize + 1).max().unwrap_or(0);
        self.room_for(state, last)?;
        let mut bytes = Vec::new();
        let [saved_keys, saved_values] = self.saved_formats;
        let group = self.group_of(state);
        let slots = self.pages[group].slots(cells);
        let order = self.key_orders.get(&state).copied();
        for (cell, slot) in cells.iter().map(|cell| *cell as usize).zip(slots) {
            match &mut self.kept[state.index()] {
                Kept::KeyValue { keys, values } => {
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    keys.save(cell, &mut key);
                    reorder(order, &mut key, keys.element(), HeadOrder::together);
                    values.save(cell, &mut value);
                    bytes.extend(recast(key, keys.element(), saved_keys));
                    bytes.extend(recast(value, values.element(), saved_values));
                }
                Kept::Recurrent { elements, numbers } => {
                    let cell = &numbers[cell * *elements..][..*elements];
                    bytes.extend(cell.iter().flat_map(|number| number.to_le_bytes()));
                }
                Kept::Paged { keys, values } => {
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    keys.save(slot, &mut key);
                    reorder(order, &mut key, keys.element(), HeadOrder::together);
                    values.save(slot, &mut value);
                    bytes.extend(recast(key, keys.element(), saved_keys));
                    bytes.extend(recast(value, values.element(), saved_values));
                }
                Kept::InModel { cell_bytes } => {
                    if self.columns[group].contains_key(&(cell as u32)) {
                        return Err(self.out_of_reach("saved"));
                    }
                    // Of a cell that holds nothing only the size is of interest.
                    bytes.resize(bytes.len() + *cell_bytes, 0);
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
        let [saved_keys, saved_values] = self.saved_formats;
        let saved = |bytes: usize, from: Element, to: Element| bytes * to.bits() / from.bits();
        let mut key_length = 0;
        let cell_bytes = match &self.kept[state.index()] {
            Kept::KeyValue { keys, values } => {
                key_length = saved(keys.cell_bytes(), keys.element(), saved_keys);
                key_length + saved(values.cell_bytes(), values.element(), saved_values)
            }
            Kept::Recurrent { elements, .. } => 4 * elements,
            Kept::Paged { keys, values } => {
                key_length = saved(keys.cell_bytes(), keys.element(), saved_keys);
                key_length + saved(values.cell_bytes(), values.element(), saved_values)
            }
            Kept::InModel { .. } => return Err(self.out_of_reach("restored")),
            Kept::Elsewhere => 0,
        };
        let expected = cell_bytes * cells.len();
        if bytes.len() != expected {
            return Err(BackendError::SavedState { layer, found: bytes.len(), expected });
        }
        let order = self.key_orders.get(&state).copied();
        let slots = match &self.kept[state.index()] {
            Kept::Paged { .. } => self.adopt(state, cells)?,
            _ => vec![Slot { block: 0, offset: 0 }; cells.len()],
        };
        for ((cell, slot), bytes) in cells.iter().zip(slots).zip(bytes.chunks_exact(cell_bytes.max(1))) {
            let cell = *cell as usize;
            match &mut self.kept[state.index()] {
                Kept::KeyValue { keys, values } => {
                    let (key, value) = bytes.split_at(key_length);
                    let mut key = recast(key.to_vec(), saved_keys, keys.element());
                    reorder(order, &mut key, keys.element(), HeadOrder::apart);
                    keys.restore(cell, &key);
                    values.restore(cell, &recast(value.to_vec(), saved_values, values.element()));
                }
                Kept::Recurrent { elements, numbers } => {
                    let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                    numbers[cell * *elements..].iter_mut().zip(floats).for_each(|(to, from)| *to = from);
                }
                Kept::Paged { keys, values } => {
                    let (key, value) = bytes.split_at(key_length);
                    let mut key = recast(key.to_vec(), saved_keys, keys.element());
                    reorder(order, &mut key, keys.element(), HeadOrder::apart);
                    keys.restore(slot, &key);
                    values.restore(slot, &recast(value.to_vec(), saved_values, values.element()));
                }
                Kept::InModel { .. } | Kept::Elsewhere => {}
            }
        }
        Ok(())
    }

    fn states(&self) -> Vec<StateId> {
        states(&self.segment.graph, self.segment.nodes.clone())
    }
}

/// Brings keys of one cell into another order, if they have one of their own.
fn reorder(
    order: Option<HeadOrder>,
    keys: &mut [u8],
    element: Element,
    way: fn(HeadOrder, &[u8], usize) -> Vec<u8>,
) {
    if let Some(order) = order {
        let reordered = way(order, keys, element.bits() / 8);
        keys.copy_from_slice(&reordered);
    }
}

impl OpenVinoPartition {
    fn group_of(&self, state: StateId) -> usize {
        let group = self.segment.graph.states[state.index()].group();
        self.segment.graph.groups().iter().position(|other| *other == group).unwrap_or(0)
    }

    fn out_of_reach(&self, what: &str) -> BackendError {
        self.failed(format!(
            "with GGML_OPENVINO_STATEFUL_EXECUTION=1 the model keeps its cache itself, where it cannot be {what}"
        ))
    }

    fn room_for(&mut self, state: StateId, cells: usize) -> Result<(), BackendError> {
        self.make_room(self.group_of(state), cells)
    }

    /// Places of cells that are restored.
    fn adopt(&mut self, state: StateId, cells: &[u32]) -> Result<Vec<Slot>, BackendError> {
        let group = self.group_of(state);
        let slots = self.pages[group].adopt(cells);
        self.grow_pages(group)?;
        Ok(slots)
    }

    /// Gives the targets of moves places, and says from where to where numbers go.
    fn page_copies(&mut self, group: usize, moves: &[CellMove]) -> Result<Vec<(Slot, Slot)>, BackendError> {
        let from: Vec<u32> = moves.iter().map(|cells| cells.from).collect();
        let to: Vec<u32> = moves.iter().map(|cells| cells.to).collect();
        let is_paged = |state: &StateId| matches!(self.kept[state.index()], Kept::Paged { .. });
        if moves.is_empty() || !self.of_group(group).iter().any(is_paged) {
            return Ok(Vec::new());
        }
        let sources = self.pages[group].slots(&from);
        let targets = self.pages[group].adopt(&to);
        self.grow_pages(group)?;
        Ok(sources.into_iter().zip(targets).filter_map(|(from, to)| Some((from?, to))).collect())
    }

    fn grow_pages(&mut self, group: usize) -> Result<(), BackendError> {
        let blocks = self.pages[group].blocks();
        for state in self.of_group(group) {
            if let Kept::Paged { keys, values } = &mut self.kept[state.index()] {
                keys.make_room(blocks)?;
                values.make_room(blocks)?;
            }
        }
        Ok(())
    }
}

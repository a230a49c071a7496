//! Texts that wait to be embedded.

use std::collections::VecDeque;

use crate::{EngineError, Runner};

/// Takes the embeddings of one request. Called on the engine thread, so it must not block.
pub trait EmbeddingSender: Send {
    /// Whether anybody still waits for them. Asked before each step; texts that nobody waits for are not embedded.
    fn is_awaited(&self) -> bool;

    /// Hands them over: a row for each text, or a row for each token of it.
    fn send(self: Box<Self>, found: Result<Vec<Vec<f32>>, EngineError>);
}

/// One request: texts that wait, and what is done of it.
struct Waiting {
    texts: VecDeque<Vec<u32>>,
    done: Vec<Vec<f32>>,
    sender: Box<dyn EmbeddingSender>,
    /// A step with its texts failed, so the next one runs without others.
    alone: bool,
}

/// Requests in the order they came. Texts of several share a step.
#[derive(Default)]
pub(crate) struct Embeddings {
    waiting: VecDeque<Waiting>,
}

impl Embeddings {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues a request, or answers it at once if it cannot be served.
    pub(crate) fn push(
        &mut self,
        model: &dyn Runner,
        texts: Vec<Vec<u32>>,
        sender: Box<dyn EmbeddingSender>,
    ) {
        match check(model, &texts) {
            Err(error) => sender.send(Err(error)),
            Ok(()) if texts.is_empty() => sender.send(Ok(Vec::new())),
            Ok(()) => {
                self.waiting.push_back(Waiting {
                    texts: texts.into(),
                    done: Vec::new(),
                    sender,
                    alone: false,
                });
            }
        }
    }

    /// The texts of the next step: at least one, and no more tokens than `tokens` if there are several. Returns how
    /// many are of each request, from the front.
    fn next(&self, tokens: usize) -> (Vec<Vec<u32>>, Vec<usize>) {
        let (mut texts, mut counts, mut room) = (Vec::new(), Vec::new(), tokens);
        for waiting in &self.waiting {
            if waiting.alone && !counts.is_empty() {
                break;
            }
            let mut count = 0;
            for text in &waiting.texts {
                if !texts.is_empty() && text.len() > room {
                    break;
                }
                room = room.saturating_sub(text.len());
                texts.push(text.clone());
                count += 1;
            }
            counts.push(count);
            if count < waiting.texts.len() || waiting.alone {
                break;
            }
        }
        (texts, counts)
    }

    /// One step of at most about `tokens` tokens; `run` evaluates texts.
    pub(crate) fn step(
        &mut self,
        tokens: usize,
        run: impl FnOnce(&[Vec<u32>]) -> Result<Vec<Vec<f32>>, EngineError>,
    ) {
        self.waiting.retain(|waiting| waiting.sender.is_awaited());
        let (texts, counts) = self.next(tokens);
        if texts.is_empty() {
            return;
        }
        match run(&texts) {
            Ok(rows) if rows.len() == texts.len() => {
                let mut rows = rows.into_iter();
                for (waiting, count) in self.waiting.iter_mut().zip(&counts) {
                    waiting.done.extend(rows.by_ref().take(*count));
                    waiting.texts.drain(..count);
                }
            }
            Ok(rows) => self.fail(EngineError::Panic {
                message: format!("the model returned {} embeddings instead of {}", rows.len(), texts.len()),
            }),
            // One of several is to blame: each gets steps of its own.
            Err(_) if counts.len() > 1 => {
                self.waiting.iter_mut().take(counts.len()).for_each(|waiting| waiting.alone = true);
            }
            Err(error) => self.fail(error),
        }
        while self.waiting.front().is_some_and(|waiting| waiting.texts.is_empty()) {
            if let Some(waiting) = self.waiting.pop_front() {
                waiting.sender.send(Ok(waiting.done));
            }
        }
    }

    fn fail(&mut self, error: EngineError) {
        if let Some(waiting) = self.waiting.pop_front() {
            waiting.sender.send(Err(error));
        }
    }

    /// Ends all requests.
    pub(crate) fn stop(&mut self) {
        for waiting in self.waiting.drain(..) {
            waiting.sender.send(Err(EngineError::Stopped));
        }
    }
}

/// Refuses what the model cannot embed.
fn check(model: &dyn Runner, texts: &[Vec<u32>]) -> Result<(), EngineError> {
    if !model.embeds() {
        return Err(EngineError::Purpose { made_for: "text" });
    }
    let (vocabulary, most) = (model.vocabulary(), model.longest_text());
    for text in texts {
        if text.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if text.len() > most as usize {
            return Err(EngineError::TextTooLong { tokens: text.len(), most });
        }
        if let Some(token) = text.iter().copied().find(|token| *token >= vocabulary) {
            return Err(EngineError::TokenOutOfRange { token, vocabulary });
        }
    }
    Ok(())
}

/// Divides by a norm: -1 none, 0 the largest number to 32760, else the p-norm. Zeros stay.
pub fn normalize(row: &mut [f32], norm: i32) {
    let absolute = |x: &f32| f64::from(x.abs());
    let length = match norm {
        -1 => 1.0,
        0 => row.iter().map(absolute).fold(0.0, f64::max) / 32760.0,
        2 => row.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt(),
        p => row.iter().map(|x| absolute(x).powi(p)).sum::<f64>().powf(1.0 / f64::from(p)),
    };
    let factor = if length > 0.0 { (1.0 / length) as f32 } else { 0.0 };
    row.iter_mut().for_each(|x| *x *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    type Found = Result<Vec<Vec<f32>>, EngineError>;

    /// Whoever drops the second part leaves.
    type Answer = (Receiver<Found>, Arc<()>);

    struct Client(Sender<Found>, std::sync::Weak<()>);

    impl EmbeddingSender for Client {
        fn is_awaited(&self) -> bool {
            self.1.strong_count() > 0
        }

        fn send(self: Box<Self>, found: Found) {
            drop(self.0.send(found));
        }
    }

    fn waiting(texts: &[&[u32]]) -> (Waiting, Answer) {
        let (sender, receiver) = channel();
        let (texts, here) = (texts.iter().map(|text| text.to_vec()).collect(), Arc::new(()));
        let sender = Box::new(Client(sender, Arc::downgrade(&here)));
        (Waiting { texts, done: Vec::new(), sender, alone: false }, (receiver, here))
    }

    fn sums(texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, EngineError> {
        if texts.iter().any(|text| text.contains(&13)) {
            return Err(EngineError::EmptyPrompt);
        }
        Ok(texts.iter().map(|text| vec![text.iter().sum::<u32>() as f32]).collect())
    }

    #[test]
    fn requests_share_steps_and_get_their_own_rows() {
        let mut embeddings = Embeddings::default();
        let (first, first_answer) = waiting(&[&[1, 2], &[3]]);
        let (second, second_answer) = waiting(&[&[4, 5, 6], &[7]]);
        embeddings.waiting.extend([first, second]);
        let mut steps = 0;
        while !embeddings.is_empty() {
            embeddings.step(6, sums);
            steps += 1;
        }
        assert_eq!(steps, 2);
        assert_eq!(first_answer.0.recv().unwrap().unwrap(), [[3.0], [3.0]]);
        assert_eq!(second_answer.0.recv().unwrap().unwrap(), [[15.0], [7.0]]);
    }

    #[test]
    fn the_request_that_fails_fails_alone() {
        let mut embeddings = Embeddings::default();
        let (good, answer) = waiting(&[&[1], &[2]]);
        let (bad, refusal) = waiting(&[&[13]]);
        let (last, last_answer) = waiting(&[&[5]]);
        embeddings.waiting.extend([good, bad, last]);
        for _ in 0..10 {
            if !embeddings.is_empty() {
                embeddings.step(100, sums);
            }
        }
        assert_eq!(answer.0.recv().unwrap().unwrap(), [[1.0], [2.0]]);
        assert!(refusal.0.recv().unwrap().is_err());
        assert_eq!(last_answer.0.recv().unwrap().unwrap(), [[5.0]]);
    }

    #[test]
    fn what_nobody_waits_for_is_not_embedded() {
        let mut embeddings = Embeddings::default();
        let (leaving, answer) = waiting(&[&[1], &[2], &[3]]);
        let (staying, other) = waiting(&[&[4]]);
        embeddings.waiting.extend([leaving, staying]);
        // In the middle of the first, whose texts have steps of their own.
        embeddings.step(1, sums);
        drop(answer.1);
        let mut seen = Vec::new();
        while !embeddings.is_empty() {
            embeddings.step(1, |texts| {
                seen.extend(texts.to_vec());
                sums(texts)
            });
        }
        assert_eq!(seen, [[4]]);
        assert_eq!(other.0.recv().unwrap().unwrap(), [[4.0]]);
        assert!(answer.0.recv().is_err(), "nobody is told");
        // When all have left there is no step at all.
        let (last, answer) = waiting(&[&[5]]);
        embeddings.waiting.push_back(last);
        drop(answer);
        embeddings.step(1, |_| unreachable!("there are no texts"));
        assert!(embeddings.is_empty());
    }

    #[test]
    fn norms() {
        let normalized = |norm| {
            let mut row = [3.0, -4.0];
            normalize(&mut row, norm);
            row
        };
        assert_eq!(normalized(-1), [3.0, -4.0]);
        assert_eq!(normalized(0), [24570.0, -32760.0]);
        assert!((normalized(1)[0] - 3.0 / 7.0).abs() < 1e-6);
        assert!((normalized(2)[1] + 0.8).abs() < 1e-6);
        let cube = 91.0_f32.powf(1.0 / 3.0);
        assert!((normalized(3)[0] - 3.0 / cube).abs() < 1e-6);
        let mut zeros = [0.0; 2];
        normalize(&mut zeros, 2);
        assert_eq!(zeros, [0.0; 2]);
    }
}

//! Tasks with several answers, of which the model should find the right one most likely: HellaSwag, WinoGrande, and
//! multiple choice in general.

use super::{model_part, step};
use crate::console::Console;
use crate::failure::Failure;
use crate::pages;
use puna_runtime::{Model, OutputRows, Work};
use puna_sampling::Random;
use puna_tokenizer::Tokenizer;

/// One task: answers as texts, and which is right.
#[derive(Clone, PartialEq, Debug)]
pub struct Task {
    pub answers: Vec<Answer>,
    pub right: usize,
}

/// A whole text; the probability of what follows its beginning counts.
#[derive(Clone, PartialEq, Debug)]
pub struct Answer {
    pub text: String,
    /// Text whose tokens do not count, if it is more than what all answers begin with.
    pub before: Option<String>,
}

/// Lines of HellaSwag: a context, the number of the right ending, four endings.
pub fn hellaswag(text: &str) -> Result<Vec<Task>, Failure> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.is_empty() || !lines.len().is_multiple_of(6) {
        return Err(Failure::Failed(format!(
            "{} lines are no whole number of tasks of 6 lines",
            lines.len()
        )));
    }
    let task = |(number, lines): (usize, &[&str])| {
        let [context, right, endings @ ..] = lines else { return Err(wrong(number, "it has no lines")) };
        let right: usize =
            right.trim().parse().map_err(|_| wrong(number, "its right ending is no number"))?;
        if right >= endings.len() {
            return Err(wrong(number, "its right ending does not exist"));
        }
        let answers = endings
            .iter()
            .map(|ending| Answer { text: format!("{context} {ending}"), before: None })
            .collect();
        Ok(Task { answers, right })
    };
    lines.chunks(6).enumerate().map(task).collect()
}

fn wrong(number: usize, reason: &str) -> Failure {
    Failure::Failed(format!("task {}: {reason}", number + 1))
}

/// Lines of WinoGrande: number, sentence with a gap `_`, two words for it, the number of the right one.
pub fn winogrande(text: &str) -> Result<Vec<Task>, Failure> {
    let task = |(number, line): (usize, &str)| {
        let fields = fields(line);
        let [_, sentence, first, second, right] = fields.as_slice() else {
            return Err(wrong(number, "it has not five fields"));
        };
        let Some((before, after)) = sentence.split_once('_') else {
            return Err(wrong(number, "its sentence has no gap"));
        };
        let right = match right.trim() {
            "1" => 0,
            "2" => 1,
            _ => return Err(wrong(number, "its answer is neither 1 nor 2")),
        };
        let answer = |word: &String| Answer {
            text: format!("{before}{word}{after}"),
            // The words themselves differ in likelihood, so what follows them is asked for.
            before: Some(format!("{before}{word}")),
        };
        Ok(Task { answers: vec![answer(first), answer(second)], right })
    };
    text.lines().filter(|line| !line.trim().is_empty()).enumerate().map(task).collect()
}

/// The fields of a line with commas; quoted ones may hold some.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                if let Some(field) = fields.last_mut() {
                    field.push('"');
                }
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => {
                if let Some(field) = fields.last_mut() {
                    field.push(other);
                }
            }
        }
    }
    fields
}

/// Tasks of a binary file: count, offsets, and for each a question and two sets of answers with labels, of which the
/// first counts. Offsets may lead to one task again and again, so the texts made of a file are limited by its size.
pub fn multiple_choice(bytes: &[u8]) -> Result<Vec<Task>, Failure> {
    /// Bytes of texts for a byte of the file; more than that many answers to one question nobody has.
    const MOST_TEXT: usize = 256;
    let mut room = bytes.len().saturating_mul(MOST_TEXT);
    let damaged = || Failure::Failed("the file of tasks is damaged or cut off".to_owned());
    let mut rest = bytes;
    let count = number(&mut rest).filter(|count| *count > 0).ok_or_else(damaged)?;
    let offsets = take(&mut rest, count.checked_mul(4).ok_or_else(damaged)?).ok_or_else(damaged)?;
    let mut tasks = Vec::new();
    for (index, offset) in offsets.as_chunks().0.iter().enumerate() {
        let mut task = rest.get(u32::from_le_bytes(*offset) as usize..).ok_or_else(damaged)?;
        let question = text(&mut task).ok_or_else(damaged)?;
        let answers = number(&mut task).ok_or_else(damaged)?;
        let mut found = Vec::new();
        for _ in 0..answers {
            let answer = text(&mut task).ok_or_else(damaged)?;
            room = room.checked_sub(question.len() + answer.len() + 1).ok_or_else(damaged)?;
            found.push(Answer { text: format!("{question} {answer}"), before: None });
        }
        let labels = take(&mut task, answers * 4).ok_or_else(damaged)?;
        let right = labels.as_chunks().0.iter().position(|label| i32::from_le_bytes(*label) == 1);
        let right = right.ok_or_else(|| wrong(index, "none of its answers is right"))?;
        tasks.push(Task { answers: found, right });
    }
    Ok(tasks)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, more) = rest.split_at_checked(count)?;
    *rest = more;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    let found = u32::from_le_bytes(take(rest, 4)?.try_into().ok()?);
    usize::try_from(found).ok().filter(|found| *found < 1 << 30)
}

fn text(rest: &mut &[u8]) -> Option<String> {
    let length = number(rest)?;
    Some(String::from_utf8_lossy(take(rest, length)?).into_owned())
}

/// So many tasks, in an order that depends on nothing else; 0 for all in their own order.
pub fn choose(mut tasks: Vec<Task>, count: usize) -> Vec<Task> {
    if count == 0 || count >= tasks.len() {
        return tasks;
    }
    let mut random = Random::new(1, 0);
    for index in 0..count {
        let left = tasks.len() - index;
        let draw = (random.next_f64() * left as f64) as usize;
        tasks.swap(index, index + draw.min(left - 1));
    }
    tasks.truncate(count);
    tasks
}

/// Runs tasks and prints after each how many were right.
pub fn run(
    model: &mut Model,
    tokenizer: &Tokenizer,
    tasks: &[Task],
    threads: usize,
    console: &Console,
) -> Result<(), Failure> {
    console.info(&format!("{} tasks", tasks.len()));
    let mut right = 0;
    for (number, task) in tasks.iter().enumerate() {
        let scores = scores(model, tokenizer, task, threads).map_err(|failure| match failure {
            Failure::Failed(text) => Failure::Failed(format!("task {}: {text}", number + 1)),
            other => other,
        })?;
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        right += usize::from(scores.iter().position(|score| *score == best) == Some(task.right));
        let done = number + 1;
        let (low, high) = interval(right, done);
        let share = 100.0 * right as f64 / done as f64;
        pages::print(
            format!("{done}\t{share:.8}%\t[{:.4}%, {:.4}%]\n", 100.0 * low, 100.0 * high).as_bytes(),
        )?;
    }
    Ok(())
}

/// Mean log-probability of the tokens that count, for each answer.
fn scores(
    model: &mut Model,
    tokenizer: &Tokenizer,
    task: &Task,
    threads: usize,
) -> Result<Vec<f64>, Failure> {
    /// Fewer tokens after a word say too little without the word itself.
    const FEW: usize = 3;
    let encode = |text: &str| tokenizer.encode(text, true, false);
    let tokens: Vec<Vec<u32>> = task.answers.iter().map(|answer| encode(&answer.text)).collect();
    let shortest = tokens.iter().map(Vec::len).min().unwrap_or(0);
    let same = |index: usize| tokens.windows(2).all(|pair| pair[0].get(index) == pair[1].get(index));
    let common = (0..shortest).take_while(|index| same(*index)).count().clamp(1, shortest.max(1));
    let befores: Vec<usize> = task
        .answers
        .iter()
        .map(|answer| answer.before.as_deref().map_or(common, |before| encode(before).len()))
        .collect();
    let long = tokens.iter().zip(&befores).all(|(tokens, before)| tokens.len() >= before + FEW);
    let mut scores = Vec::new();
    for (tokens, before) in tokens.iter().zip(befores) {
        let first = if long { before.max(1) } else { common };
        scores.push(score(model, tokens, first, threads)?);
    }
    Ok(scores)
}

fn score(model: &mut Model, tokens: &[u32], first: usize, threads: usize) -> Result<f64, Failure> {
    let counted = tokens.get(first..).unwrap_or(&[]);
    if counted.is_empty() {
        return Ok(f64::NEG_INFINITY);
    }
    model.clear(0);
    let work = |part: &[u32], outputs| Work { sequence: 0, tokens: part.to_vec(), outputs };
    if let Some(part) = model_part(tokens, 0..first - 1) {
        step(model, vec![work(part, OutputRows::None)])?;
    }
    let part = model_part(tokens, first - 1..tokens.len() - 1).unwrap_or(&[]);
    let outputs = step(model, vec![work(part, OutputRows::All)])?;
    let surprises = super::surprise_of_rows(&outputs.logits, outputs.width, counted, threads);
    Ok(-surprises.iter().sum::<f64>() / counted.len() as f64)
}

/// Wilson's interval for a share at 95 %.
fn interval(right: usize, count: usize) -> (f64, f64) {
    const Z: f64 = 1.959_963_984_540_054;
    let (n, share) = (count as f64, right as f64 / count.max(1) as f64);
    let middle = share + Z * Z / (2.0 * n);
    let spread = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    ((middle - spread) / scale, (middle + spread) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_files_are_read() {
        let tasks = hellaswag("A man\n2\nsits\nruns\nswims\nflies\n").expect("it is whole");
        assert_eq!((tasks.len(), tasks[0].right), (1, 2));
        assert_eq!(tasks[0].answers[1].text, "A man runs");
        for wrong in ["", "a\nb\n", "a\n4\n1\n2\n3\n4", "a\nx\n1\n2\n3\n4"] {
            assert!(hellaswag(wrong).is_err(), "{wrong}");
        }
        let line = "7,\"The cup, said _, is \"\"red\"\".\",Ann,Bob,2\n";
        let tasks = winogrande(line).expect("it is whole");
        assert_eq!(tasks[0].answers[1].text, "The cup, said Bob, is \"red\".");
        assert_eq!(tasks[0].answers[0].before.as_deref(), Some("The cup, said Ann"));
        for wrong in ["1,a,b,c,1", "1,a _,b,c,3", "1,a _,b,c"] {
            assert!(winogrande(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn binary_files_are_read_and_damage_is_found() {
        let mut bytes = Vec::new();
        let word = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        word(&mut bytes, "Why?");
        bytes.extend(2u32.to_le_bytes());
        word(&mut bytes, "so");
        word(&mut bytes, "not");
        bytes.extend(0i32.to_le_bytes());
        bytes.extend(1i32.to_le_bytes());
        let tasks = multiple_choice(&bytes).expect("it is whole");
        assert_eq!((tasks[0].right, tasks[0].answers[0].text.as_str()), (1, "Why? so"));
        for length in 0..bytes.len() {
            assert!(multiple_choice(&bytes[..length]).is_err(), "{length}");
        }
        assert!(multiple_choice(&[0xff; 64]).is_err());
    }

    #[test]
    fn a_small_file_makes_no_endless_text() {
        // Many tasks that are all the same one: a long question with many empty answers.
        const COUNT: u32 = 1000;
        let mut bytes = COUNT.to_le_bytes().to_vec();
        bytes.extend([0; 4 * COUNT as usize]);
        bytes.extend(COUNT.to_le_bytes());
        bytes.extend([b'x'; COUNT as usize]);
        bytes.extend(COUNT.to_le_bytes());
        bytes.extend([0; 4 * COUNT as usize]);
        bytes.extend([1, 0, 0, 0].repeat(COUNT as usize));
        assert!(multiple_choice(&bytes).is_err());
    }

    #[test]
    fn a_choice_of_tasks_is_always_the_same() {
        let task = |right| Task { answers: vec![], right };
        let tasks: Vec<Task> = (0..50).map(task).collect();
        let chosen = choose(tasks.clone(), 7);
        assert_eq!(chosen, choose(tasks.clone(), 7));
        assert_eq!(chosen.len(), 7);
        assert_eq!(choose(tasks.clone(), 0), tasks);
        let (low, high) = interval(5, 10);
        assert!((low - 0.2366).abs() < 1e-3 && (high - 0.7634).abs() < 1e-3, "{low} {high}");
    }
}
